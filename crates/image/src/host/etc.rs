//! The `/etc` of the `host` image: generated where secrets or names of people could be, else by allow-list.

use std::path::Path;

use super::{Item, Plan, copy};
use crate::Error;

/// Files and directories that are copied whole.
const COPIED: &[&str] = &[
    // Libraries and programs find each other by these.
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld-musl-x86_64.path",
    "ld-musl-aarch64.path",
    "alternatives",
    // Which distribution this is; installers ask.
    "os-release",
    "lsb-release",
    "debian_version",
    "redhat-release",
    "fedora-release",
    "alpine-release",
    "arch-release",
    // Time and language.
    "localtime",
    "timezone",
    "locale.conf",
    "default/locale",
    // Tables of names.
    "protocols",
    "services",
    "rpc",
    "networks",
    "mime.types",
    "magic",
    "magic.mime",
    "terminfo",
    "inputrc",
    "gai.conf",
    "host.conf",
    "xattr.conf",
    // Languages and fonts.
    "perl",
    "fonts",
    // Debian's Chromium does not start without these.
    "chromium.d",
    // What TLS libraries trust.
    "ssl/openssl.cnf",
    "ca-certificates.conf",
    "pki/ca-trust/extracted",
    "crypto-policies/back-ends",
    "crypto-policies/config",
];
/// Directories whose files are copied when they are certificates; keys lie beside them on some machines.
const CERTIFICATES: &[&str] = &["ssl/certs", "pki/tls/certs"];
/// Ends of the names of files that a Java installation needs; others there hold passwords.
const JAVA_ENDS: &[&str] = &[".properties", ".security", ".policy", ".cfg", ".certs"];

const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n";
const PROFILE: &str = "umask 022\nif [ -d /etc/profile.d ]; then\n  for file in /etc/profile.d/*.sh; do\n    [ -r \"$file\" ] && . \"$file\"\n  done\n  unset file\nfi\n";
const BASHRC: &str = "[ -z \"$PS1\" ] && return\nshopt -s checkwinsize\nPS1='\\u@\\h:\\w\\$ '\n";
const GROUP: &str = "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\nmail:x:8:\nstaff:x:50:\nusers:x:100:\nsandbox:x:1000:\nnogroup:x:65534:\n";
const SHADOW: &str = "root:*:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\nsandbox:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n";

pub(super) fn plan(machine: &Path, plan: &mut Plan) -> Result<(), Error> {
    generated(machine, plan);
    let etc = Path::new("etc");
    for name in COPIED {
        copy::tree(machine, &etc.join(name), &|_| true, plan)?;
    }
    for name in CERTIFICATES {
        copy::tree(machine, &etc.join(name), &is_certificate, plan)?;
    }
    for name in versioned(machine)? {
        let is_java = name.starts_with("java");
        copy::tree(machine, &etc.join(&name), &|path| !is_java || ends_with(path, JAVA_ENDS), plan)?;
    }
    Ok(())
}

fn generated(machine: &Path, plan: &mut Plan) {
    let shell = match machine.join("bin/bash").exists() {
        true => "/bin/bash",
        false => "/bin/sh",
    };
    let passwd = format!(
        "root:x:0:0:root:/root:{shell}\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/home/sandbox:{shell}\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    );
    let shells = format!("/bin/sh\n{}", if shell == "/bin/bash" { "/bin/bash\n" } else { "" });
    let files = [
        ("passwd", 0o644, passwd),
        ("group", 0o644, GROUP.to_owned()),
        ("shadow", 0o600, SHADOW.to_owned()),
        ("shells", 0o644, shells),
        ("hosts", 0o644, HOSTS.to_owned()),
        ("hostname", 0o644, "sandbox\n".to_owned()),
        // Its sandbox writes what its network has; machine ids are drawn there too.
        ("resolv.conf", 0o644, String::new()),
        ("machine-id", 0o644, String::new()),
        ("nsswitch.conf", 0o644, NSSWITCH.to_owned()),
        ("profile", 0o644, PROFILE.to_owned()),
        ("bash.bashrc", 0o644, BASHRC.to_owned()),
    ];
    for (name, mode, content) in files {
        let path = Path::new("etc").join(name);
        plan.add(Item::Generated { path, mode, content });
    }
}

/// Configuration of languages whose directories have a version in their name.
fn versioned(machine: &Path) -> Result<Vec<String>, Error> {
    let etc = machine.join("etc");
    let failed = |e| Error::io("list", &etc, e);
    let mut names = Vec::new();
    for item in std::fs::read_dir(&etc).map_err(failed)? {
        names.extend(item.map_err(failed)?.file_name().into_string());
    }
    names.retain(|name| {
        let is_version = |rest: &str| rest.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let is_python = name.strip_prefix("python").is_some_and(is_version);
        let is_java = name.strip_prefix("java-").and_then(|rest| rest.strip_suffix("-openjdk")).is_some_and(is_version);
        is_python || is_java
    });
    names.sort();
    Ok(names)
}

fn is_certificate(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_hash_link = name
        .rsplit_once('.')
        .is_some_and(|(hash, number)| hash.len() == 8 && number.bytes().all(|b| b.is_ascii_digit()));
    let mentions_key = name.to_ascii_lowercase().contains("key");
    !mentions_key && (is_hash_link || name == "cacerts" || ends_with(path, &[".pem", ".crt"]))
}

fn ends_with(path: &Path, ends: &[&str]) -> bool {
    path.to_str().is_some_and(|path| ends.iter().any(|end| path.ends_with(end)))
}
