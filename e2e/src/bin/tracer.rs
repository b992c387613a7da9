//! `tracer`: follows a server by `ptrace` as its standard input says, and kills at effects. See `e2e::trace`.

/// Everything that is traced waits for the tracer at each of its calls: on a loaded machine it goes first.
const PRIORITY: i32 = -15;

fn main() -> anyhow::Result<()> {
    // Without the right to it all goes on, slower.
    let _ = rustix::process::nice(PRIORITY);
    e2e::trace::follow::serve()
}
