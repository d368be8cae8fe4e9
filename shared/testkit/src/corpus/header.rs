//! What can be wrong with headers.

use super::client::Request;
use super::{Case, Expected, Operation};

/// Headers that mean something to every route, or could.
const OTHERS: [&str; 9] = [
    "Authorization",
    "Accept",
    "Content-Type",
    "Content-Encoding",
    "X-Request-Id",
    "traceparent",
    "If-None-Match",
    "Range",
    "Cookie",
];

pub(super) fn cases(operation: &Operation<'_>, base: &Request) -> Vec<Case> {
    let mut cases = Vec::new();
    let declared = operation.parameters("header");
    let names = declared.iter().filter_map(|header| header["name"].as_str()).chain(OTHERS);
    for name in names {
        let required = declared.iter().any(|header| header["name"] == name && header["required"] == true);
        let strict = if required { Expected::Refused } else { Expected::Documented };
        let mut add = |what: &str, request: Request, expected: &Expected| {
            cases.push(Case { what: format!("{name} {what}"), request, expected: expected.clone() });
        };
        let with = |value: &[u8]| base.clone().without(name).header(name, value);
        for (what, value) in [("with NUL", &b"a\0b"[..]), ("with a control character", b"a\x01b")] {
            add(what, with(value), &Expected::Refused);
        }
        add("over the limit of heads", with(&[b'x'; 17_000]), &Expected::Refused);
        add("empty", with(b""), &strict);
        add("over-long", with(&[b'x'; 5000]), &strict);
        add("not ASCII", with(b"\xff\xfe"), &strict);
        add("twice", with(b"x").header(name, "y"), &strict);
        if required {
            add("missing", base.clone().without(name), &Expected::Refused);
        }
    }
    let length = |value: &str| base.clone().header("Content-Length", value);
    for value in ["x", "-1", "1e3", "1, 2", "99999999999999999999999"] {
        let what = format!("Content-Length {value}");
        cases.push(Case { what, request: length(value), expected: Expected::Refused });
    }
    cases
}
