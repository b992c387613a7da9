use std::path::Path;
use std::process::Command;

use super::*;

fn roots() -> Vec<u8> {
    std::fs::read("/etc/ssl/certs/ca-certificates.crt").expect("ca-certificates")
}

fn authority(directory: &Path) -> Certificate {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key"])
        .args(["-subj", "/CN=Sandbox test", "-out", "ca.pem"])
        .current_dir(directory)
        .output()
        .expect("start openssl");
    assert!(made.status.success(), "{made:?}");
    let pem = std::fs::read_to_string(directory.join("ca.pem")).expect("certificate");
    Certificate::parse(&pem).expect("one certificate")
}

fn keytool(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("keytool");
    // A virtual machine that starts quickly.
    command.args(["-J-Xshare:auto", "-J-XX:TieredStopAtLevel=1"]).args(arguments).current_dir(directory);
    let output = command.output().expect("start keytool");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "keytool {arguments:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
    text
}

/// What Java itself sees in a store, after its digest was checked.
fn listed(directory: &Path, store: &[u8]) -> String {
    std::fs::write(directory.join("store"), store).expect("store");
    keytool(directory, &["-list", "-keystore", "store", "-storepass", PASSWORD])
}

#[test]
fn java_reads_what_is_made_of_a_bundle() {
    let directory = tempfile::tempdir().expect("temp dir");
    let certificate = authority(directory.path());
    let store = extended(b"unknown".to_vec(), &certificate, &roots());
    let listed = listed(directory.path(), &store);
    let count = certificate::all_of(&roots()).len() + 1;
    assert!(listed.contains(&format!("contains {count} entries")) && listed.contains("opensandbox, "), "{listed}");
}

#[test]
fn both_formats_are_extended() {
    let directory = tempfile::tempdir().expect("temp dir");
    let path = directory.path();
    let certificate = authority(path);
    for (kind, store) in [("JKS", "old"), ("PKCS12", "new")] {
        let plain = ["-J-Dkeystore.pkcs12.macAlgorithm=NONE", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE"];
        let import = ["-importcert", "-noprompt", "-alias", "own", "-file", "ca.pem", "-storetype", kind];
        keytool(path, &[&plain[..], &import, &["-keystore", store, "-storepass", PASSWORD]].concat());
        let before = std::fs::read(path.join(store)).expect("store");
        let store = extended(before, &certificate, b"");
        let listed = listed(path, &store);
        assert!(listed.contains("contains 2 entries") && listed.contains("opensandbox, "), "{listed}");
    }
}

#[test]
fn a_store_that_is_encrypted_or_broken_gets_the_bundle() {
    let directory = tempfile::tempdir().expect("temp dir");
    let certificate = authority(directory.path());
    let import = ["-importcert", "-noprompt", "-alias", "own", "-file", "ca.pem", "-storetype", "PKCS12"];
    keytool(directory.path(), &[&import[..], &["-keystore", "new", "-storepass", PASSWORD]].concat());
    let encrypted = std::fs::read(directory.path().join("new")).expect("store");
    for store in [&encrypted[..], b"", &MAGIC, &[MAGIC, VERSION, [0xff; 4]].concat(), &[0x30, 0x84, 0xff]] {
        let made = extended(store.to_vec(), &certificate, certificate.pem().as_bytes());
        assert_eq!(old_count(&made), Some(2));
        assert!(made[..made.len() - DIGEST_BYTES].ends_with(certificate.der()));
    }
}

#[test]
fn stores_do_not_break_the_reader() {
    let directory = tempfile::tempdir().expect("temp dir");
    let certificate = authority(directory.path());
    let plain = ["-J-Dkeystore.pkcs12.macAlgorithm=NONE", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE"];
    let import = ["-importcert", "-noprompt", "-alias", "own", "-file", "ca.pem", "-storetype", "PKCS12"];
    keytool(directory.path(), &[&plain[..], &import, &["-keystore", "new", "-storepass", PASSWORD]].concat());
    let new = std::fs::read(directory.path().join("new")).expect("store");
    let old = extended(Vec::new(), &certificate, b"");
    fuzz::run("stores of Java", &[&new, &old], |input| {
        let made = extended(input.to_vec(), &certificate, b"");
        assert!(old_count(&made).is_some_and(|count| count > 0));
    });
}
