//! Chrome has roots of its own and a database for each user; what every user gets is a policy of the machine.

use rustix::io::Errno;

use super::certificate::Certificate;
use super::files::{self, Root};
use super::unless_exhausted;
use crate::error::Result;

/// Where builds of Chrome look for policies on Linux: Chromium and what Playwright brings, Google Chrome, Chrome for
/// Testing. Made also where there is none of them: a browser may be installed later.
const POLICIES: [&str; 3] =
    ["etc/chromium/policies/managed", "etc/opt/chrome/policies/managed", "etc/opt/chrome_for_testing/policies/managed"];
/// The policy's file; Chrome joins the files of the directory.
const NAME: &str = "opensandbox.json";

/// Adds the certificate by the policy `CACertificates`, which Chrome has since release 128.
pub(super) fn extend(root: Root<'_>, certificate: &Certificate) -> Result<()> {
    let policy = policy(certificate.pem());
    for directory in POLICIES {
        let place = || -> std::result::Result<(), Errno> {
            files::write(&files::fresh(&root.made(directory)?, NAME)?, policy.as_bytes())
        };
        unless_exhausted("add to the policies of Chrome", place())?;
    }
    Ok(())
}

/// A PEM without its first and last line is the Base64 that the policy wants.
fn policy(pem: &str) -> String {
    let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
    format!("{{\"CACertificates\":[\"{base64}\"]}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_json_with_the_certificate_on_one_line() {
        let pem = "-----BEGIN CERTIFICATE-----\nMIIB\nAg==\n-----END CERTIFICATE-----\n";
        assert_eq!(policy(pem), "{\"CACertificates\":[\"MIIBAg==\"]}\n");
    }
}
