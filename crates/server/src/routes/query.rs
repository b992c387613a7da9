//! Query parameters, read strictly: a value of the wrong form is a 422 that names it.

use http::Uri;
use protocol::error::code;

use crate::errors::ApiError;

/// The parameters of one request.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn of(uri: &Uri) -> Self {
        Self(form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect())
    }

    /// The last value of a parameter.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Every value of a repeatable parameter.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A whole number within a range, or its default.
    pub(crate) fn number(
        &self,
        name: &str,
        range: std::ops::RangeInclusive<u64>,
        default: u64,
    ) -> Result<u64, ApiError> {
        let Some(text) = self.text(name) else {
            return Ok(default);
        };
        match text.parse::<u64>() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err(invalid(name, &format!("must be a whole number from {} to {}", range.start(), range.end()))),
        }
    }

    /// Seconds, with fractions.
    pub(crate) fn seconds(&self, name: &str, max: f64) -> Result<Option<std::time::Duration>, ApiError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse::<f64>() {
            Ok(seconds) if (0.0..=max).contains(&seconds) => Ok(Some(std::time::Duration::from_secs_f64(seconds))),
            _ => Err(invalid(name, &format!("must be a number of seconds from 0 to {max}"))),
        }
    }

    /// Yes or no, in the words that the published server takes.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.text(name).map(str::to_ascii_lowercase).as_deref() {
            None | Some("false" | "0" | "no" | "off" | "f" | "n") => Ok(false),
            Some("true" | "1" | "yes" | "on" | "t" | "y") => Ok(true),
            Some(_) => Err(invalid(name, "must be true or false")),
        }
    }
}

/// 422 for a query parameter.
pub(crate) fn invalid(name: &str, problem: &str) -> ApiError {
    let loc = ["query".to_owned(), name.to_owned()];
    ApiError::invalid(code::INVALID_PARAMETER, "value_error", &loc, format!("{name}: {problem}"))
}
