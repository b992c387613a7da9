//! `tracer`: follows a server by `ptrace` as its standard input says, and kills at effects. See `e2e::trace`.

fn main() -> anyhow::Result<()> {
    e2e::trace::follow::serve()
}
