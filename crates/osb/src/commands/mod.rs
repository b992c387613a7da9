//! What each command does. A command knows the client and the printer; it never ends the process by itself.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use protocol::lifecycle::PaginationInfo;
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::{EXIT_FAILURE, Failure};
use crate::output::{Printer, table};
use crate::settings::Settings;

pub mod command;
pub mod config;
pub mod doctor;
pub mod exec;
pub mod file;
pub mod fork;
pub mod image;
pub mod open;
pub mod policy;
pub mod pool;
pub mod port_forward;
pub mod recording;
pub mod run;
pub mod sandbox;
pub mod shell;
pub mod signals;
pub mod snapshot;
pub mod transfer;
pub mod vault;
pub mod volume;
pub mod watch;

/// What every client command is given.
pub struct Context {
    /// Where the server is and what to assume.
    pub settings: Settings,
    /// How to write.
    pub printer: Printer,
}

impl Context {
    /// A client for the server of the settings.
    pub fn client(&self) -> Result<Client, Failure> {
        Client::new(&self.settings, self.printer.verbose)
    }
}

/// How a command that succeeded ends.
pub type Outcome = Result<ExitCode, Failure>;

/// How to see more than one page of a list; nothing on its last one.
fn next_page(pagination: &PaginationInfo) -> String {
    if !pagination.has_next_page {
        return String::new();
    }
    let PaginationInfo { page, total_pages, total_items, .. } = pagination;
    format!("page {page} of {total_pages}, {total_items} in all: --page {} shows the next\n", page + 1)
}

/// What became of each target of a command that has several.
#[derive(Default)]
pub struct Rows {
    rows: Vec<Value>,
    failed: bool,
}

impl Rows {
    /// Records what became of one target.
    pub fn push(&mut self, key: &str, target: &str, outcome: Result<&str, Failure>) {
        self.rows.push(match outcome {
            Ok(message) => json!({ key: target, "status": "ok", "message": message }),
            Err(failure) => {
                self.failed = true;
                let mut row = json!({ key: target, "status": "error" });
                row["error"] = failure.to_value()["error"].take();
                row
            }
        });
    }

    /// Writes the rows; the command fails if one target did.
    pub fn finish(self, printer: &Printer) -> Outcome {
        printer.document(&Value::Array(self.rows.clone()), || {
            let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let line = |row: &Value| {
                let target = row.as_object().and_then(|row| {
                    row.iter()
                        .find(|(key, _)| matches!(key.as_str(), "id" | "path" | "reference" | "name"))
                        .map(|(_, value)| value)
                });
                let target = target.and_then(Value::as_str).unwrap_or_default().to_owned();
                let message = [text(row, "message"), text(&row["error"], "message")].concat();
                vec![target, text(row, "status"), message]
            };
            table::rows(&["target", "status", "message"], self.rows.iter().map(line).collect())
        })?;
        Ok(if self.failed { ExitCode::from(EXIT_FAILURE) } else { ExitCode::SUCCESS })
    }
}

/// One moving line on a terminal that says what is being waited for; nothing elsewhere.
pub struct Progress {
    bar: ProgressBar,
    last: RefCell<String>,
}

/// How often the line moves.
const TICK: Duration = Duration::from_millis(100);

impl Progress {
    /// A line without a known end.
    pub fn waiting(printer: &Printer, text: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        Self::draw(printer, bar, "{spinner} {wide_msg}", text)
    }

    /// A line for this many bytes; unknown if 0.
    pub fn bytes(printer: &Printer, text: &str, total: u64) -> Self {
        if total == 0 {
            let bar = ProgressBar::new_spinner();
            return Self::draw(printer, bar, "{spinner} {msg} {binary_bytes} {binary_bytes_per_sec}", text);
        }
        let bar = ProgressBar::new(total);
        Self::draw(printer, bar, "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}", text)
    }

    fn draw(printer: &Printer, bar: ProgressBar, template: &str, text: &str) -> Self {
        bar.set_draw_target(if printer.may_draw() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        });
        bar.set_style(ProgressStyle::with_template(template).expect("the template is constant and valid"));
        bar.set_message(text.to_owned());
        if printer.may_draw() {
            bar.enable_steady_tick(TICK);
        }
        Self { bar, last: RefCell::new(text.to_owned()) }
    }

    /// Says something else.
    pub fn say(&self, text: &str) {
        if *self.last.borrow() != text {
            self.bar.set_message(text.to_owned());
            *self.last.borrow_mut() = text.to_owned();
        }
    }

    /// Moves on by this many bytes.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// The bar itself, for code that runs elsewhere.
    pub fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Serializes a wire type.
pub fn to_value<T: serde::Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("wire types have only text keys")
}
