//! Reads what `cargo test` prints: which program, which test, how it went and, for a failed one, why.

use crate::results::TestResult;

/// Lines of a failed test that are kept: its last words, before the backtrace.
const MAX_REASON_LINES: usize = 12;

/// The results of a run so far.
#[derive(Default)]
pub struct Reader {
    binary: String,
    results: Vec<TestResult>,
    /// Which result the printed lines belong to.
    told: Option<usize>,
}

impl Reader {
    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        if let Some(rest) = line.trim_start().strip_prefix("Running ") {
            self.binary = binary_name(rest);
        } else if let Some(rest) = line.trim_start().strip_prefix("Doc-tests ") {
            self.binary = format!("doc {rest}");
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            let name = self.full_name(name);
            self.told = self.results.iter().position(|result| result.name == name);
        } else if line.starts_with("stack backtrace:") || line == "failures:" {
            self.told = None;
        } else if let Some((name, outcome)) = test_line(line) {
            let name = self.full_name(name);
            let reason = String::new();
            self.results.push(TestResult { suite: "rust".into(), name, outcome: outcome.into(), reason });
        } else if let Some(result) = self.told.and_then(|at| self.results.get_mut(at))
            && !line.trim().is_empty()
            && result.reason.lines().count() < MAX_REASON_LINES
        {
            result.reason.push_str(line);
            result.reason.push('\n');
        }
    }

    /// All results.
    pub fn into_results(self) -> Vec<TestResult> {
        self.results
    }

    fn full_name(&self, test: &str) -> String {
        format!("{}::{test}", self.binary)
    }
}

/// `unittests src/lib.rs (target/.../deps/e2e-0123)` or `tests/x.rs (...)`: the name of the program.
fn binary_name(text: &str) -> String {
    let path = text.rsplit_once('(').map_or(text, |(_, path)| path.trim_end_matches(')'));
    let file = path.rsplit('/').next().unwrap_or(path);
    file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned()
}

/// `test a::b ... ok` gives the name and what it means.
fn test_line(line: &str) -> Option<(&str, &'static str)> {
    let (name, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let outcome = match verdict.split_whitespace().next()?.trim_end_matches(',') {
        "ok" => "passed",
        "FAILED" => "failed",
        "ignored" => "ignored",
        _ => return None,
    };
    Some((name, outcome))
}

#[cfg(test)]
mod tests {
    use super::{Reader, binary_name, test_line};

    #[test]
    fn lines_of_libtest_are_read() {
        assert_eq!(test_line("test a::b ... ok"), Some(("a::b", "passed")));
        assert_eq!(test_line("test a ... FAILED"), Some(("a", "failed")));
        assert_eq!(test_line("test a ... ignored, why"), Some(("a", "ignored")));
        assert_eq!(test_line("test result: ok. 1 passed"), None);
        assert_eq!(binary_name("unittests src/lib.rs (target/x/deps/e2e-93ab)"), "e2e");
        assert_eq!(binary_name("tests/crash.rs (target/x/deps/crash-93ab)"), "crash");
    }

    #[test]
    fn a_failed_test_keeps_its_words_and_no_backtrace() {
        let mut reader = Reader::default();
        let text = "     Running tests/a.rs (target/deps/a-12)\ntest one ... ok\ntest two ... FAILED\n\nfailures:\n\n\
                    ---- two stdout ----\n\nthread 'two' panicked at tests/a.rs:3:5:\nleft is not right\n\
                    stack backtrace:\n   0: begin\n\n\nfailures:\n    two\n";
        text.lines().for_each(|line| reader.line(line));
        let results = reader.into_results();
        assert_eq!(results.iter().map(|result| result.outcome.as_str()).collect::<Vec<_>>(), ["passed", "failed"]);
        assert_eq!(results[1].name, "a::two");
        assert_eq!(results[1].reason, "thread 'two' panicked at tests/a.rs:3:5:\nleft is not right\n");
    }
}
