use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

fn openssl(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("openssl").args(arguments).current_dir(directory).output().expect("start openssl");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A certificate with this subject, its texts of the kinds that `mask` allows.
fn make(directory: &Path, subject: &str, mask: &str) -> String {
    let config =
        format!("[req]\nstring_mask = {mask}\nutf8 = yes\ndistinguished_name = name\nprompt = no\n[name]\nCN = x\n");
    std::fs::write(directory.join("config"), config).expect("config");
    let arguments = ["req", "-x509", "-config", "config", "-utf8", "-multivalue-rdn", "-newkey", "ec", "-pkeyopt"];
    let rest = ["ec_paramgen_curve:P-256", "-nodes", "-keyout", "key", "-subj", subject, "-out", "made.pem"];
    openssl(directory, &[&arguments[..], &rest].concat());
    std::fs::read_to_string(directory.join("made.pem")).expect("certificate")
}

#[test]
fn a_subject_has_the_hash_that_openssl_gives_it() {
    let directory = tempfile::tempdir().expect("temp dir");
    let long = format!("/O={}/CN={}", "o".repeat(64), "Long ".repeat(12));
    let subjects = [
        "/CN=Sandbox t1-0/O=osb egress",
        "/C=DE/O=  Two   Spaces  /CN= Ümläut  STRASSE ",
        "/CN=日本 語/OU=Тест",
        "/CN=b+OU=a+O=C/L=Here",
        "/emailAddress=Some.One@Example.ORG/DC=Example",
        &long,
    ];
    for mask in ["utf8only", "default", "nombstr"] {
        for subject in subjects {
            if mask == "nombstr" && !subject.chars().all(|c| c < '\u{100}') {
                continue;
            }
            let pem = make(directory.path(), subject, mask);
            let hash = openssl(directory.path(), &["x509", "-noout", "-hash", "-in", "made.pem"]);
            let certificate = Certificate::parse(&pem).expect(subject);
            assert_eq!(certificate.subject_hash().as_deref(), Some(hash.trim()), "{subject} {mask}");
        }
    }
}

#[test]
fn public_roots_have_the_hashes_of_their_links() {
    let mut count = 0;
    for entry in std::fs::read_dir("/etc/ssl/certs").expect("ca-certificates").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((hash, "0")) = name.split_once('.') else { continue };
        let text = std::fs::read_to_string(entry.path()).expect("a root");
        let Some(certificate) = Certificate::parse(&text) else { continue };
        assert_eq!(certificate.subject_hash().as_deref(), Some(hash), "{name}");
        count += 1;
    }
    assert!(count > 50, "{count}");
}

fn root() -> (PathBuf, String) {
    let mut roots: Vec<_> = std::fs::read_dir("/etc/ssl/certs").expect("ca-certificates").flatten().collect();
    roots.sort_by_key(|entry| entry.file_name());
    let path = roots.into_iter().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "pem"));
    let path = path.expect("a root");
    (path.clone(), std::fs::read_to_string(path).expect("a root"))
}

#[test]
fn exactly_one_certificate_is_one() {
    let (_, pem) = root();
    let pem = pem.trim();
    assert_eq!(Certificate::parse(pem).expect("one").pem(), format!("{pem}\n"));
    let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let body = pem.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)).expect("PEM");
    let longer = STANDARD.encode([decode(body).expect("base64"), vec![0]].concat());
    let others = [
        String::new(),
        format!("{pem}\n{pem}"),
        format!("{key}{pem}"),
        format!("{pem}\n{key}"),
        format!("a comment\n{pem}"),
        pem.replace("CERTIFICATE", "TRUSTED CERTIFICATE"),
        format!("{BEGIN}\nAAAA\n{END}"),
        format!("{BEGIN}\n{END}"),
        format!("{BEGIN}\n{longer}\n{END}"),
        pem.replacen('M', "*", 1),
    ];
    for other in others {
        assert!(Certificate::parse(&other).is_none(), "{other}");
    }
}

#[test]
fn a_bundle_gives_what_can_be_decoded() {
    let (_, pem) = root();
    let bundle = format!("# comment\r\n{}\n{BEGIN}\nAAAA\n{END}\n{BEGIN}\n{pem}", pem.replace('\n', "\r\n"));
    assert_eq!(all_of(bundle.as_bytes()).len(), 2);
    assert!(all_of(b"").is_empty());
}

#[test]
fn certificates_do_not_break_the_reader() {
    let (_, pem) = root();
    let der = decode(pem.trim().strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END)).expect("PEM"));
    let der = der.expect("base64");
    fuzz::run("certificates", &[&der, pem.as_bytes()], |input| {
        let _ = subject(input).and_then(canonical);
        all_of(input);
    });
}
