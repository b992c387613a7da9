//! Patterns of `GET /files/search`, matched against a name: `* ? [a-z] [!a] {a,b} \x ** !(...)`.

/// Places looked at while matching one name: a pattern built to explode is refused, not obeyed.
const MAX_STEPS: usize = 1_000_000;
/// Nesting of groups.
const MAX_DEPTH: u32 = 16;

/// A parsed pattern.
#[derive(Debug)]
pub struct Glob {
    tokens: Vec<Token>,
}

#[derive(Debug)]
enum Token {
    Literal(char),
    One,
    Many,
    Class { negated: bool, ranges: Vec<(char, char)> },
    Any(Vec<Vec<Token>>),
    Not(Vec<Vec<Token>>),
}

/// The pattern needs more steps than are allowed.
#[derive(Debug, PartialEq, Eq)]
pub struct TooComplex;

impl Glob {
    /// Parses a pattern.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(pattern: &str) -> Result<Self, String> {
        let mut letters = pattern.chars().peekable();
        let tokens = sequence(&mut letters, "", 0)?;
        match letters.next() {
            Some(extra) => Err(format!("{extra:?} without its opening")),
            None => Ok(Self { tokens }),
        }
    }

    /// Whether the whole name matches.
    ///
    /// # Errors
    /// When the pattern explodes on this name.
    pub fn matches(&self, name: &str) -> Result<bool, TooComplex> {
        let name: Vec<char> = name.chars().collect();
        let mut steps = 0;
        ends(&self.tokens, &name, 0, &mut steps).map(|ends| ends.contains(&name.len()))
    }
}

type Letters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Reads tokens up to one of `stop`, which is left.
fn sequence(letters: &mut Letters<'_>, stop: &str, depth: u32) -> Result<Vec<Token>, String> {
    if depth > MAX_DEPTH {
        return Err(format!("groups are nested deeper than {MAX_DEPTH}"));
    }
    let mut tokens = Vec::new();
    while let Some(&letter) = letters.peek() {
        if stop.contains(letter) {
            break;
        }
        letters.next();
        tokens.push(match letter {
            '*' => {
                while letters.next_if_eq(&'*').is_some() {}
                Token::Many
            }
            '?' => Token::One,
            '\\' => Token::Literal(letters.next().ok_or("a backslash at the end")?),
            '[' => class(letters)?,
            '{' => Token::Any(alternatives(letters, ',', '}', depth)?),
            '!' => {
                letters.next_if_eq(&'(').ok_or("a bare \"!\"; write !(...) or \\!")?;
                Token::Not(alternatives(letters, '|', ')', depth)?)
            }
            letter => Token::Literal(letter),
        });
    }
    Ok(tokens)
}

fn alternatives(
    letters: &mut Letters<'_>,
    separator: char,
    close: char,
    depth: u32,
) -> Result<Vec<Vec<Token>>, String> {
    let stop = [separator, close].iter().collect::<String>();
    let mut found = Vec::new();
    loop {
        found.push(sequence(letters, &stop, depth + 1)?);
        match letters.next() {
            Some(letter) if letter == separator => {}
            Some(_) => return Ok(found),
            None => return Err(format!("a group without its {close:?}")),
        }
    }
}

fn class(letters: &mut Letters<'_>) -> Result<Token, String> {
    let negated = letters.next_if(|letter| matches!(letter, '!' | '^')).is_some();
    let mut ranges = Vec::new();
    loop {
        let first = match letters.next() {
            Some(']') if !ranges.is_empty() => return Ok(Token::Class { negated, ranges }),
            Some('\\') => letters.next(),
            letter => letter,
        };
        let first = first.ok_or("a class without its \"]\"")?;
        let mut last = first;
        if letters.peek() == Some(&'-') {
            let mut ahead = letters.clone();
            ahead.next();
            let end = match ahead.next() {
                Some(']') => None,
                Some('\\') => ahead.next(),
                end => end,
            };
            if let Some(end) = end {
                last = end;
                *letters = ahead;
            }
        }
        if last < first {
            return Err(format!("the range {first}-{last} is empty"));
        }
        ranges.push((first, last));
    }
}

/// All places where a match of `tokens` that begins at `start` can end, ascending and each once.
fn ends(tokens: &[Token], name: &[char], start: usize, steps: &mut usize) -> Result<Vec<usize>, TooComplex> {
    let mut places = vec![start];
    for token in tokens {
        let mut next = Vec::new();
        for place in places {
            *steps += 1;
            if *steps + next.len() > MAX_STEPS {
                return Err(TooComplex);
            }
            match token {
                Token::Literal(letter) => next.extend((name.get(place) == Some(letter)).then_some(place + 1)),
                Token::One => next.extend((place < name.len()).then_some(place + 1)),
                Token::Many => {
                    next.extend(place..=name.len());
                    break; // the places are ascending: the first covers them all
                }
                Token::Class { negated, ranges } => {
                    let inside = |letter: &char| ranges.iter().any(|(first, last)| first <= letter && letter <= last);
                    next.extend(name.get(place).is_some_and(|letter| inside(letter) != *negated).then_some(place + 1));
                }
                Token::Any(alternatives) => next.extend(any_ends(alternatives, name, place, steps)?),
                Token::Not(alternatives) => {
                    let excluded = any_ends(alternatives, name, place, steps)?;
                    next.extend((place..=name.len()).filter(|end| !excluded.contains(end)));
                }
            }
        }
        *steps += next.len();
        next.sort_unstable();
        next.dedup();
        places = next;
    }
    Ok(places)
}

fn any_ends(
    alternatives: &[Vec<Token>],
    name: &[char],
    start: usize,
    steps: &mut usize,
) -> Result<Vec<usize>, TooComplex> {
    let mut found = Vec::new();
    for tokens in alternatives {
        found.extend(ends(tokens, name, start, steps)?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
