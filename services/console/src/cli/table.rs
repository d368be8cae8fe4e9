//! Answers as tables.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

/// Columns of a table where no terminal says how wide it is.
const PLAIN_WIDTH: u16 = 200;

/// Prints rows under their headings; a line that says so when there are none.
pub(super) fn print<const N: usize>(headings: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(headings);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    if !table.is_tty() {
        table.set_width(PLAIN_WIDTH);
    }
    let mut rows = rows.into_iter().peekable();
    if rows.peek().is_none() {
        println!("nothing");
        return;
    }
    rows.for_each(|row| {
        table.add_row(row);
    });
    println!("{table}");
}

/// A field as text; nothing for null.
pub(super) fn text(value: &Value, field: &str) -> String {
    match &value[field] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The elements of a list.
pub(super) fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// Letters that were asked for and are in none of these counts: those beyond the limit.
pub(super) fn beyond<const N: usize>(answer: &Value, counts: [&str; N]) -> i64 {
    let count = |name: &str| answer[name].as_i64().unwrap_or(0);
    (count("matched") - counts.map(count).iter().sum::<i64>()).max(0)
}

/// Seconds for people; nothing for null.
pub(super) fn age(value: &Value, field: &str) -> String {
    let Some(seconds) = value[field].as_u64() else { return String::new() };
    let time = match seconds {
        0..3600 => seconds,
        3600..86_400 => seconds / 60 * 60,
        _ => seconds / 3600 * 3600,
    };
    humantime::format_duration(std::time::Duration::from_secs(time)).to_string()
}

/// JSON, whole.
pub(super) fn json(value: &Value) {
    println!("{value:#}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let of = |seconds: u64| age(&serde_json::json!({ "a": seconds }), "a");
        assert_eq!((of(59), of(7_261), of(90_061)), ("59s".into(), "2h 1m".into(), "1day 1h".into()));
        assert_eq!(age(&Value::Null, "a"), "");
    }
}
