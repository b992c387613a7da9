use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

/// A machine with a merged `/usr` and things that must stay its own.
fn machine() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str, mode: u32| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for name in ["bin", "lib", "sbin"] {
        fs::create_dir_all(directory.path().join("usr").join(name)).unwrap();
        symlink(format!("usr/{name}"), directory.path().join(name)).unwrap();
    }
    fs::create_dir(directory.path().join("lib64")).unwrap();
    fs::create_dir(directory.path().join("usr/local")).unwrap();
    write("usr/bin/bash", "#!", 0o755);
    write("etc/os-release", "ID=test\n", 0o644);
    write("etc/ld.so.conf.d/x.conf", "/lib/x\n", 0o644);
    write("etc/ssl/certs/ca-certificates.crt", "CERT", 0o644);
    write("etc/ssl/certs/java/cacerts", "CERTS", 0o644);
    write("etc/java-17-openjdk/security/java.security", "s", 0o644);
    write("etc/python3.11/sitecustomize.py", "pass", 0o644);
    fs::create_dir(directory.path().join("etc/alternatives")).unwrap();
    symlink("/usr/bin/mawk", directory.path().join("etc/alternatives/awk")).unwrap();
    for secret in [
        "etc/ssl/private/server.key",
        "etc/ssl/certs/server-key.pem",
        "etc/java-17-openjdk/management/jmxremote.password",
        "etc/shadow",
        "etc/environment",
        "etc/gitconfig",
        "etc/ssh/ssh_host_key",
        "root/.bash_history",
        "home/me/.netrc",
        "var/lib/secret",
        "run/docker.sock",
    ] {
        write(secret, "PLANTED-SECRET", 0o644);
    }
    for private in ["etc/fonts/private.conf", "etc/ld.so.conf.d/private.conf"] {
        write(private, "PLANTED-SECRET", 0o600);
    }
    directory
}

fn files(root: &Path, into: &mut Vec<PathBuf>) {
    for item in fs::read_dir(root).unwrap() {
        let path = item.unwrap().path();
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            files(&path, into);
        }
        into.push(path);
    }
}

#[test]
fn the_skeleton_has_what_programs_need_and_no_secret() {
    let (machine, layers) = (machine(), tempfile::tempdir().unwrap());
    let host = build_from(machine.path(), layers.path()).unwrap();
    let root = Area::open(layers.path()).unwrap().path(&host.layer);
    assert_eq!(host.binds, ["/usr", "/lib64"].map(PathBuf::from));
    assert_eq!(host.masks, [PathBuf::from("/usr/local")]);
    assert_eq!(fs::read_link(root.join("bin")).unwrap(), Path::new("usr/bin"));
    assert!(root.join("usr").is_dir() && fs::read_dir(root.join("usr")).unwrap().next().is_none());
    let mode = |name: &str| fs::metadata(root.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("tmp"), mode("root"), mode("workspace"), mode("etc/shadow")), (0o1777, 0o700, 0o777, 0o600));
    assert_eq!(fs::metadata(root.join("home/sandbox")).unwrap().uid(), 1000);
    for (name, content) in [
        ("etc/os-release", "ID=test\n"),
        ("etc/ssl/certs/ca-certificates.crt", "CERT"),
        ("etc/ssl/certs/java/cacerts", "CERTS"),
        ("etc/java-17-openjdk/security/java.security", "s"),
        ("etc/python3.11/sitecustomize.py", "pass"),
    ] {
        assert_eq!(fs::read_to_string(root.join(name)).unwrap(), content);
    }
    assert!(
        fs::read_to_string(root.join("etc/passwd"))
            .unwrap()
            .contains("sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/bash")
    );

    let mut all = Vec::new();
    files(&root, &mut all);
    for path in all.iter().filter(|path| fs::symlink_metadata(path).unwrap().is_file()) {
        assert!(!fs::read_to_string(path).unwrap().contains("PLANTED-SECRET"), "{}", path.display());
    }
    for name in ["etc/ssl/private", "etc/ssh", "home/me", "root/.bash_history", "etc/environment"] {
        assert!(!root.join(name).exists(), "{name}");
    }
}

#[test]
fn a_machine_that_changed_gets_another_skeleton() {
    let (machine, layers) = (machine(), tempfile::tempdir().unwrap());
    let build = || build_from(machine.path(), layers.path()).unwrap().layer;
    let first = build();
    assert_eq!(build(), first, "nothing changed");
    fs::write(machine.path().join("etc/os-release"), "ID=newer\n").unwrap();
    let second = build();
    assert_ne!(second, first);
    fs::create_dir_all(machine.path().join("var/lib/dpkg")).unwrap();
    fs::write(machine.path().join("var/lib/dpkg/status"), "Package: x\n").unwrap();
    let third = build();
    assert_ne!(third, second);
    fs::create_dir(machine.path().join("usr/share")).unwrap();
    assert_ne!(build(), third, "something was added to /usr");
    assert_eq!(Area::open(layers.path()).unwrap().list().unwrap().len(), 4);
}

#[test]
fn this_machine_has_a_skeleton() {
    let layers = tempfile::tempdir().unwrap();
    let began = std::time::Instant::now();
    let host = build_skeleton(layers.path()).unwrap();
    let built = began.elapsed();
    let again = std::time::Instant::now();
    assert_eq!(build_skeleton(layers.path()).unwrap(), host);
    println!("skeleton built in {built:?}, found again in {:?}", again.elapsed());
    assert!(host.binds.contains(&PathBuf::from("/usr")));
    let root = Area::open(layers.path()).unwrap().path(&host.layer);
    let mut all = Vec::new();
    files(&root, &mut all);
    for path in &all {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        assert!(!["private", "ssh", "password"].iter().any(|bad| name.contains(bad)), "{name}");
    }
}
