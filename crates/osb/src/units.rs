//! Durations and sizes as people write and read them.

use std::time::Duration;

/// Reads `90`, `90s`, `10m`, `1h30m`, `2d` or `500ms`. A bare number is seconds.
///
/// # Errors
/// A sentence with the accepted forms.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write seconds (90) or units (500ms, 10m, 1h30m, 2d)");
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let seconds = match unit {
            "ms" => 0.001,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

/// Reads a duration, or `none` for no limit.
///
/// # Errors
/// A sentence with the accepted forms.
pub fn parse_limit(text: &str) -> Result<Limit, String> {
    match text.trim() {
        "none" | "never" => Ok(Limit::None),
        other => parse_duration(other).map(Limit::After).map_err(|error| format!("{error}, or `none`")),
    }
}

/// A duration that may be without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No end.
    None,
    /// This long.
    After(Duration),
}

impl Limit {
    /// Whole seconds, rounded up; `None` without an end.
    pub fn seconds(self) -> Option<i64> {
        match self {
            Self::None => None,
            Self::After(time) => {
                Some(i64::try_from(time.as_secs() + u64::from(time.subsec_nanos() > 0)).unwrap_or(i64::MAX))
            }
        }
    }
}

/// Checks a size of memory or disk as the protocol takes it: `512Mi`, `2g`, `1073741824`; returns it as it was given.
///
/// # Errors
/// A sentence with the accepted forms.
pub fn parse_size(text: &str) -> Result<String, String> {
    const UNITS: [&str; 14] = ["", "b", "k", "kb", "ki", "m", "mb", "mi", "g", "gb", "gi", "t", "tb", "ti"];
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.parse::<u64>().is_ok() && UNITS.contains(&unit.to_ascii_lowercase().as_str()) {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is no size; write whole numbers with a unit: 512Mi, 2Gi, 500m (1000-based without i)"))
    }
}

/// Reads a size: `512Mi`, `20Gi`, `1073741824`; gives bytes.
///
/// # Errors
/// A sentence with the accepted forms.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = parse_size(text)?;
    lifecycle::quantity::storage(&text).ok_or_else(|| format!("`{text}` is too large"))
}

/// Checks a number of cores as the protocol takes it: `2`, `0.5`, `500m`; returns it as it was given.
///
/// # Errors
/// A sentence with the accepted forms.
pub fn parse_cpu(text: &str) -> Result<String, String> {
    let text = text.trim();
    let value =
        text.strip_suffix('m').map_or_else(|| text.parse::<f64>(), |milli| milli.parse().map(|n: f64| n / 1000.0));
    match value {
        Ok(cores) if cores.is_finite() && cores > 0.0 => Ok(text.to_owned()),
        _ => Err(format!("`{text}` is no number of cores; write 2, 0.5 or 500m")),
    }
}

/// Reads a file mode as people write it, `644` or `0644`, into the protocol's form: octal digits as a decimal number.
///
/// # Errors
/// A sentence with the accepted forms.
pub fn parse_mode(text: &str) -> Result<i64, String> {
    let wrong = || format!("`{text}` is no file mode; write octal digits from 1 to 777, for example 644");
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let bits = u32::from_str_radix(digits, 8).map_err(|_| wrong())?;
    if bits == 0 || bits > 0o777 {
        return Err(wrong());
    }
    digits.parse().map_err(|_| wrong())
}

/// Reads `KEY=VALUE`.
///
/// # Errors
/// A sentence with the accepted form.
pub fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no KEY=VALUE")),
    }
}

/// A size for people: `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// A duration for people, two units at most: `1h30m`, `45s`, `2d3h`.
pub fn duration(seconds: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let mut text = String::new();
    let mut rest = seconds;
    let mut written = 0;
    for (length, name) in UNITS {
        if written > 0 || rest >= length {
            let count = rest / length;
            rest %= length;
            if count > 0 {
                text.push_str(&format!("{count}{name}"));
            }
            written += 1;
        }
        if written == 2 {
            break;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

/// How long ago, or in how long, a time of the API is: `5m ago`, `in 2h`. The text itself where it is no time.
pub fn relative(time: &str, now: jiff::Timestamp) -> String {
    let Ok(time_at) = time.parse::<jiff::Timestamp>() else { return time.to_owned() };
    let seconds = time_at.as_second() - now.as_second();
    if seconds > 0 {
        format!("in {}", duration(seconds.unsigned_abs()))
    } else {
        format!("{} ago", duration(seconds.unsigned_abs()))
    }
}

#[cfg(test)]
mod tests;
