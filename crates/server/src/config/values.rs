//! Values of keys: from TOML or plain text to something checked.

use toml::{Table, Value};

/// What a key takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Text,
    Secret,
    Integer {
        min: i64,
        max: i64,
    },
    Fraction {
        min: f64,
        max: f64,
    },
    Switch,
    OneOf(&'static [&'static str]),
    List,
    /// Named secrets.
    Keys,
}

impl Kind {
    /// Reads what a variable or flag says.
    pub(super) fn parse(self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        let value = match self {
            Self::Text | Self::Secret | Self::OneOf(_) => Value::String(text.to_owned()),
            Self::Integer { .. } => Value::Integer(text.parse().map_err(|_| self.wanted(&format!("\"{text}\"")))?),
            Self::Fraction { .. } => Value::Float(text.parse().map_err(|_| self.wanted(&format!("\"{text}\"")))?),
            Self::Switch => match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Value::Boolean(true),
                "false" | "0" | "no" | "off" => Value::Boolean(false),
                _ => return Err(self.wanted(&format!("\"{text}\""))),
            },
            Self::List => Value::Array(
                text.split(',').map(str::trim).filter(|p| !p.is_empty()).map(|p| Value::String(p.to_owned())).collect(),
            ),
            Self::Keys => Value::Array(
                text.split(',')
                    .map(|pair| {
                        let (id, key) = pair.split_once('=').ok_or_else(|| self.wanted("something else"))?;
                        let text = |text: &str| Value::String(text.trim().to_owned());
                        Ok(Value::Table(Table::from_iter([
                            ("key_id".to_owned(), text(id)),
                            ("key".to_owned(), text(key)),
                        ])))
                    })
                    .collect::<Result<_, String>>()?,
            ),
        };
        self.check(value)
    }

    /// Checks type and range.
    pub(super) fn check(self, value: Value) -> Result<Value, String> {
        let ok = match (self, &value) {
            (Self::Text | Self::Secret, Value::String(text)) => !text.trim().is_empty(),
            (Self::Integer { min, max }, Value::Integer(n)) => (min..=max).contains(n),
            (Self::Fraction { min, max }, Value::Float(x)) => (min..=max).contains(x),
            (Self::Fraction { .. }, Value::Integer(n)) => {
                let x = f64::from(i32::try_from(*n).map_err(|_| self.wanted(&n.to_string()))?);
                return self.check(Value::Float(x));
            }
            (Self::Switch, Value::Boolean(_)) => true,
            (Self::OneOf(words), Value::String(text)) => words.iter().any(|word| word.eq_ignore_ascii_case(text)),
            (Self::List, Value::Array(items)) => items.iter().all(Value::is_str),
            (Self::Keys, Value::Array(items)) => items.iter().all(|item| {
                let is_text = |name| item.get(name).is_some_and(Value::is_str);
                is_text("key_id") && is_text("key") && item.as_table().is_some_and(|item| item.len() == 2)
            }),
            _ => false,
        };
        if ok {
            return Ok(value);
        }
        // A secret's value is not repeated, whatever is wrong with it.
        let got =
            if matches!(self, Self::Secret | Self::Keys) { "something else".to_owned() } else { value.to_string() };
        Err(self.wanted(&got))
    }

    fn wanted(self, got: &str) -> String {
        let wanted = match self {
            Self::Text | Self::Secret => "a text that is not empty".to_owned(),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Fraction { min, max } => format!("a number from {min} to {max}"),
            Self::Switch => "true or false".to_owned(),
            Self::OneOf(words) => {
                let named = words.iter().map(|word| if word.is_empty() { "\"\"" } else { word });
                format!("one of {}", named.collect::<Vec<_>>().join(", "))
            }
            Self::List => "a list of texts".to_owned(),
            Self::Keys => "a list of { key_id, key }, or a=BASE64,b=BASE64 in a variable".to_owned(),
        };
        format!("must be {wanted}, not {got}")
    }

    /// The value as people may see it.
    pub(super) fn show(self, value: &Value) -> String {
        match self {
            Self::Secret => "\"********\"".to_owned(),
            Self::Keys => {
                let ids = value.as_array().into_iter().flatten().filter_map(|item| item.get("key_id"));
                let shown: Vec<_> = ids.map(|id| format!("{{ key_id = {id}, key = \"********\" }}")).collect();
                format!("[{}]", shown.join(", "))
            }
            _ => value.to_string(),
        }
    }
}
