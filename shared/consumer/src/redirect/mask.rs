//! Error texts may quote what people wrote. Before one leaves the process, what looks personal or secret is masked.

use waybill_event::headers::MAX_ERROR_MESSAGE_BYTES;

/// Digits in a row, blanks and dashes between them allowed, from which on a number may be a card or a phone.
const LONG_NUMBER: usize = 9;

/// Masks e-mail addresses, long numbers and the credentials of URLs, word by word, and cuts the text at the bound of
/// the header, on a character.
pub(crate) fn error_text(text: &str) -> String {
    let masked: Vec<String> = text.split(' ').map(word).collect();
    let mut masked = numbers(&masked.join(" "));
    masked.truncate(masked.floor_char_boundary(MAX_ERROR_MESSAGE_BYTES));
    masked
}

fn word(word: &str) -> String {
    match (word.find("://"), word.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://***{}", &word[..scheme], &word[at..]),
        (_, Some(_)) => "***@***".to_owned(),
        _ => word.to_owned(),
    }
}

fn numbers(text: &str) -> String {
    let (mut out, mut run, mut digits) = (String::with_capacity(text.len()), String::new(), 0);
    for c in text.chars().chain(['\0']) {
        // UUIDs are ids, not numbers of people: a letter ends the run.
        if c.is_ascii_digit() || (digits > 0 && matches!(c, ' ' | '-')) {
            run.push(c);
            digits += usize::from(c.is_ascii_digit());
            continue;
        }
        let touches = c.is_alphanumeric() && run.ends_with(|last: char| last.is_ascii_digit());
        let part_of_word = touches || out.ends_with(|last: char| last.is_alphanumeric());
        if digits >= LONG_NUMBER && !part_of_word {
            out.push_str("***");
            out.push_str(&run[run.trim_end_matches([' ', '-']).len()..]);
        } else {
            out.push_str(&run);
        }
        run.clear();
        digits = 0;
        out.push(c);
    }
    out.pop();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_personal_is_masked_and_the_rest_stays() {
        for (given, masked) in [
            ("no account for kim@example.com today", "no account for ***@*** today"),
            ("postgres://user:secret@db/orders refused", "postgres://***@db/orders refused"),
            ("card 4111 1111-11111111 refused", "card *** refused"),
            (
                "order 0198b1c2-0000-7000-8000-000000000001: 12 < 500",
                "order 0198b1c2-0000-7000-8000-000000000001: 12 < 500",
            ),
        ] {
            assert_eq!(error_text(given), masked);
        }
    }

    #[test]
    fn a_long_text_is_cut_on_a_character() {
        let text = error_text(&"é".repeat(2_000));
        assert_eq!(text.len(), MAX_ERROR_MESSAGE_BYTES);
        assert!(error_text(&format!("x{}", "é".repeat(2_000))).len() < MAX_ERROR_MESSAGE_BYTES);
    }
}
