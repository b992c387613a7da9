//! Tables and short facts for people.

use comfy_table::{ContentArrangement, Table, presets};

/// A table with upper-case headings and no lines.
pub fn rows(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().map(|heading| heading.to_uppercase()));
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    trimmed(&table.to_string())
}

/// Names and values, one pair on a line; pairs without a value are left out.
pub fn facts(pairs: &[(&str, Option<String>)]) -> String {
    let width = pairs.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in pairs {
        if let Some(value) = value {
            text.push_str(&format!("{name:<width$}  {value}\n"));
        }
    }
    text
}

/// Lines without the spaces that padding leaves at their ends.
fn trimmed(text: &str) -> String {
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
