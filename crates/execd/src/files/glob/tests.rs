use std::io::Write;
use std::process::{Command, Stdio};

use super::Glob;
use fuzz::Random;

#[track_caller]
fn check(pattern: &str, yes: &[&str], no: &[&str]) {
    let glob = Glob::parse(pattern).expect("a pattern");
    yes.iter().for_each(|name| assert_eq!(glob.matches(name), Ok(true), "{name}"));
    no.iter().for_each(|name| assert_eq!(glob.matches(name), Ok(false), "{name}"));
}

#[test]
fn every_form_matches() {
    check("**", &["", "a", ".hidden"], &[]);
    check("*.py", &["a.py", ".py"], &["a.pyc", "py"]);
    check("?[a-c][!x]", &["zby", "äc."], &["zbx", "zd.", "zb"]);
    check("{a,b*}.{c,}", &["a.c", "bcd.", "a."], &["c.c"]);
    check("!(*.tmp|b)", &["a", "b.txt", ""], &["x.tmp", "b"]);
    check("a!(b)c", &["axc", "abbc", "ac"], &["abc"]);
    check("\\*[]]", &["*]"], &["a]"]);
    check("[a\\]]", &["a", "]"], &["\\"]);
}

#[test]
fn bad_patterns_are_named() {
    for pattern in ["!a", "[a", "{a", "!(a", "\\", "[z-a]"] {
        assert!(Glob::parse(pattern).is_err(), "{pattern}");
    }
}

#[test]
fn an_exploding_pattern_is_refused() {
    let pattern = "{*,*}{*,*}{*,*}{*,*}{*,*}{*,*}".to_owned() + "{{*a,*b},{*c,*d}}x";
    let name = "a".repeat(20_000);
    assert!(Glob::parse(&pattern).expect("a pattern").matches(&name).is_err());
}

/// Pairs that are compared with bash.
const PAIRS: usize = 10_000;
/// Groups within groups.
const DEPTH: u32 = 3;
/// Few letters, so that patterns and names often meet; all that mean something to either side.
const LETTERS: &[char] = &['a', 'b', 'c', '.', '-', '!', '^', ']', '[', '{', ',', '|', ')', '\\', 'ä'];

/// One pattern, written for us and for bash: what we write `{a,b}` is `@(a|b)` there.
#[derive(Default)]
struct Pattern {
    ours: String,
    bash: String,
}

impl Pattern {
    fn both(&mut self, text: &str) {
        self.ours.push_str(text);
        self.bash.push_str(text);
    }

    fn sequence(&mut self, random: &mut Random, depth: u32) {
        for _ in 0..random.below(4) {
            match random.below(if depth < DEPTH { 12 } else { 9 }) {
                0..4 => self.both(&literal(random)),
                4 => self.both("?"),
                5 => self.both(if random.chance(2) { "*" } else { "**" }),
                6..9 => self.class(random),
                // Behind a star bash takes some groups for satisfied: [[ c = !(a)*!(*) ]] is true there.
                _ if self.bash.trim_end_matches('?').ends_with('*') => self.both("?"),
                9 | 10 => self.group(random, depth, ["{", ",", "}"], ["@(", "|", ")"]),
                _ => self.group(random, depth, ["!(", "|", ")"], ["!(", "|", ")"]),
            }
        }
    }

    fn group(&mut self, random: &mut Random, depth: u32, ours: [&str; 3], bash: [&str; 3]) {
        self.ours.push_str(ours[0]);
        self.bash.push_str(bash[0]);
        for alternative in 0..=random.below(3) {
            if alternative > 0 {
                self.ours.push_str(ours[1]);
                self.bash.push_str(bash[1]);
            }
            self.sequence(random, depth + 1);
        }
        self.ours.push_str(ours[2]);
        self.bash.push_str(bash[2]);
    }

    /// Without brackets and bars within: where bash looks for the end of a group it does not see that a class
    /// hides them.
    fn class(&mut self, random: &mut Random) {
        self.both(["[", "[!", "[^"][random.below(3)]);
        for _ in 0..=random.below(3) {
            match random.below(3) {
                0 => self.both(["a-b", "b-c", "a-c", ",-.", "a-\\c"][random.below(5)]),
                _ => self.both(["a", "b", ".", ",", "\\-", "\\!", "\\^", "ä"][random.below(8)]),
            }
        }
        self.both("]");
    }
}

/// A letter that stands for itself on both sides.
fn literal(random: &mut Random) -> String {
    let letter = *random.pick(LETTERS);
    if letter.is_alphabetic() { letter.to_string() } else { format!("\\{letter}") }
}

/// A name of the pattern's own letters, so that matches are not rare.
fn name(random: &mut Random) -> String {
    (0..random.below(6)).map(|_| *random.pick(LETTERS)).collect()
}

#[test]
fn generated_patterns_match_as_bash_says() {
    let mut random = Random::new(0x676c_6f62);
    let pairs: Vec<(Pattern, String)> = (0..PAIRS)
        .map(|_| {
            let mut pattern = Pattern::default();
            pattern.sequence(&mut random, 0);
            (pattern, name(&mut random))
        })
        .collect();
    let verdicts = bash(&pairs);
    let mut matched = 0;
    for ((pattern, name), verdict) in pairs.iter().zip(verdicts) {
        let glob = Glob::parse(&pattern.ours).unwrap_or_else(|why| panic!("{}: {why}", pattern.ours));
        assert_eq!(glob.matches(name), Ok(verdict), "{} (in bash {}) and {name:?}", pattern.ours, pattern.bash);
        matched += usize::from(verdict);
    }
    assert!((PAIRS / 20..PAIRS / 2).contains(&matched), "{matched} of {PAIRS} match: the pairs prove little");
}

/// What bash says of each pair.
fn bash(pairs: &[(Pattern, String)]) -> Vec<bool> {
    let script = "while IFS= read -r -d '' pattern && IFS= read -r -d '' name; do
        if [[ $name == $pattern ]]; then echo 1; else echo 0; fi; done";
    let mut bash = Command::new("bash")
        .args(["-O", "extglob", "-c", script])
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash starts");
    let mut stdin = bash.stdin.take().expect("stdin is piped");
    let input: Vec<u8> =
        pairs.iter().flat_map(|(pattern, name)| format!("{}\0{name}\0", pattern.bash).into_bytes()).collect();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = bash.wait_with_output().expect("bash ends");
    writer.join().expect("no panic").expect("bash reads all");
    let verdicts: Vec<bool> = output.stdout.split(|byte| *byte == b'\n').map(|line| line == b"1").collect();
    assert_eq!(verdicts.len(), pairs.len() + 1, "a line per pair and what follows the last");
    verdicts[..pairs.len()].to_vec()
}

#[test]
fn fuzz_globs() {
    let examples: [&[u8]; 5] = [b"**/*.py", b"{a,b{c,d}}[!a-c]", b"!(a|b)*", b"\\*[]]?", b"{*,*}{*,*}{*,*}x"];
    fuzz::run("globs", &examples, |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(glob) = Glob::parse(&text) {
            for name in ["", "a", "aab.py", &text] {
                let _ = glob.matches(name); // too complex a pattern is refused, not obeyed
            }
        }
    });
}
