//! A machine of its own, emulated: a Debian 12 whose kernel and cgroups are not those of the machine the tests run on.
//!
//! A guest boots from parts that are made once and kept ([`Guest::made`]), runs one script and tells its results over
//! a serial line. Emulation needs no virtualisation of the host, and is slow: one boot should serve many tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Seconds that a guest may run: a minute on an idle core, several when all cores are busy.
const DEADLINE_S: u32 = 400;
/// Memory of a guest in MiB: the system, a server and a sandbox at its limit of some 100 MiB.
const MEMORY_MIB: u32 = 1536;
/// Bytes of the disk that carries the program and the script, beyond the program.
const PAYLOAD_SPARE_BYTES: u64 = 64 << 20;
/// What makes the parts; a change of any makes them anew.
const RECIPES: [(&str, &str); 3] = [
    ("make.sh", include_str!("../guest/make.sh")),
    ("init", include_str!("../guest/init")),
    ("modules", include_str!("../guest/modules")),
];

/// The parts that a guest boots from.
pub struct Guest {
    place: PathBuf,
}

/// One step of the script: a line `@ NAME STATUS` after its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What the script calls it.
    pub name: String,
    /// Its exit code.
    pub status: i32,
    /// What it wrote.
    pub output: String,
}

impl Guest {
    /// The parts beneath `cache`, made if they are not there yet: half a minute, with a mirror of Debian in reach.
    ///
    /// # Errors
    /// A program is missing, this is not root, or the mirror cannot be reached.
    pub fn made(cache: &Path) -> Result<Self> {
        let place = cache.join("guest");
        let stamp = place.join("made-by");
        let recipe: String = RECIPES.iter().map(|(name, text)| format!("# {name}\n{text}")).collect();
        if fs::read_to_string(&stamp).is_ok_and(|made_by| made_by == recipe) {
            return Ok(Self { place });
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/make.sh");
        run(Command::new("sh").arg(script).arg(&place))?;
        fs::write(stamp, recipe)?;
        Ok(Self { place })
    }

    /// Boots, runs the script with `program` at `/payload/osb`, and returns what it told.
    ///
    /// # Errors
    /// The guest does not come to the end of its script in time; then with the end of its console.
    pub fn run(&self, program: &Path, script: &str) -> Result<Vec<Step>> {
        let scratch = tempfile::Builder::new().prefix("osb-guest-").tempdir_in(&self.place)?;
        let files = scratch.path().join("payload");
        fs::create_dir(&files)?;
        fs::copy(program, files.join("osb")).with_context(|| format!("copy {}", program.display()))?;
        fs::write(files.join("script"), script)?;
        let payload = scratch.path().join("payload.ext4");
        let bytes = fs::metadata(program)?.len() + PAYLOAD_SPARE_BYTES;
        fs::File::create(&payload)?.set_len(bytes)?;
        run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-d"]).arg(&files).arg(&payload))?;

        let (console, told) = (scratch.path().join("console"), scratch.path().join("told"));
        let (root, disk) = (self.place.join("root.ext4"), "format=raw,if=virtio");
        let mut machine = Command::new("timeout");
        machine
            .arg(DEADLINE_S.to_string())
            .args(["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "1"])
            .args(["-m", &MEMORY_MIB.to_string(), "-nodefaults", "-no-reboot", "-display", "none"])
            .arg("-kernel")
            .arg(self.place.join("vmlinuz"))
            .arg("-initrd")
            .arg(self.place.join("initrd.gz"))
            .args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off"])
            .args(["-drive", &format!("file={},{disk},snapshot=on", root.display())])
            .args(["-drive", &format!("file={},{disk},readonly=on", payload.display())])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-serial", &format!("file:{}", told.display())]);
        let ran = run(&mut machine);
        let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        let steps = steps(&text(&told));
        if ran.is_ok() && steps.last().is_some_and(|step| step.name == "end") {
            return Ok(steps);
        }
        bail!("the guest did not reach the end of its script: {ran:?}\n{}\n{}", text(&told), text(&console))
    }
}

/// Cuts what the script told at its `@` lines.
fn steps(told: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut output = String::new();
    for line in told.lines() {
        let mark = line.strip_prefix("@ ").and_then(|rest| rest.split_once(' '));
        match mark.and_then(|(name, status)| Some((name, status.trim().parse().ok()?))) {
            Some((name, status)) => {
                steps.push(Step { name: name.to_owned(), status, output: std::mem::take(&mut output) });
            }
            None => output.extend([line.trim_end(), "\n"]),
        }
    }
    steps
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_with_their_status() {
        let found = steps("one\r\ntwo\n@ a 0\n@ b 137\n@ not a mark\n");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], Step { name: "a".into(), status: 0, output: "one\ntwo\n".into() });
        assert_eq!(found[1], Step { name: "b".into(), status: 137, output: String::new() });
    }
}
