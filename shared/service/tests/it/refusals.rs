//! What hyper refuses before there is a request looks as every other refusal. Raw sockets: no client library sends it.

use serde_json::Value;
use waybill_service::http::{HEADER_LIMIT, Limits};

use crate::server::start;

/// Status, headers and problem of an answer that ended its connection.
fn parts(text: &str) -> (u16, Vec<(String, String)>, Value) {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok());
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("no header: {line}"));
        (name.to_ascii_lowercase(), value.to_owned())
    };
    let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    (status.expect("a status line"), lines.map(header).collect(), body)
}

fn is_problem(what: &str, text: &str, status: u16, code: &str) {
    let (told, headers, body) = parts(text);
    let header = |name: &str| {
        let found: Vec<_> = headers.iter().filter(|header| header.0 == name).map(|h| h.1.as_str()).collect();
        assert_eq!(found.len(), 1, "{what}: {name} in {text}");
        found[0].to_owned()
    };
    assert_eq!((told, body["status"].as_u64()), (status, Some(status.into())), "{what}: {text}");
    assert_eq!((header("content-type").as_str(), &body["code"]), ("application/problem+json", &code.into()));
    assert_eq!(body["type"], format!("/problems/{code}"), "{what}");
    assert_eq!(body["requestId"], header("x-request-id").as_str(), "{what}");
    assert_eq!(header("connection"), "close", "{what}");
    assert_eq!(header("content-length"), body.to_string().len().to_string(), "{what}: {text}");
    assert!(header("date").ends_with(" GMT"), "{what}");
    assert!(body["detail"].as_str().is_some_and(|detail| detail.len() > 20), "{what}: {body}");
}

/// Requests that end before there is one, with status and code.
fn bad_heads() -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    let head = |lines: &str| format!("POST /echo HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n").into_bytes();
    let bad = |what, bytes: Vec<u8>| (what, bytes, 400, "invalid-request");
    let large = |what, bytes: Vec<u8>| (what, bytes, 431, "head-too-large");
    vec![
        large("a header that is too large", head(&format!("X: {}", "x".repeat(HEADER_LIMIT)))),
        large("a header without end", head(&format!("X: {}", "x".repeat(10 * HEADER_LIMIT)))),
        large("a target that is too large", format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)).into()),
        large("too many headers", head(&vec!["X: x"; 101].join("\r\n"))),
        bad("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec()),
        bad("no method", b" / HTTP/1.1\r\n\r\n".to_vec()),
        bad("a bad method", b"G\x01T / HTTP/1.1\r\n\r\n".to_vec()),
        bad("a bad target", b"GET /\x01 HTTP/1.1\r\n\r\n".to_vec()),
        bad("a target without a slash", b"GET ^ HTTP/1.1\r\n\r\n".to_vec()),
        bad("version 0.9", b"GET / HTTP/0.9\r\n\r\n".to_vec()),
        bad("version 1.2", b"GET / HTTP/1.2\r\n\r\n".to_vec()),
        bad("version 3", b"GET / HTTP/3.0\r\n\r\n".to_vec()),
        bad("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        bad("a header without colon", head("nothing")),
        bad("a space before the colon", head("X : x")),
        bad("a folded header", head("X: a\r\n b")),
        bad("a header with NUL", head("X: a\0b")),
        bad("no number of Content-Length", head("Content-Length: many")),
        bad("a negative Content-Length", head("Content-Length: -1")),
        bad("a signed Content-Length", head("Content-Length: +1")),
        bad("a Content-Length over 64 bits", head("Content-Length: 99999999999999999999")),
        bad("two lengths in one", head("Content-Length: 1, 2")),
        bad("two lengths", head("Content-Length: 1\r\nContent-Length: 2")),
        bad("an unknown Transfer-Encoding", head("Transfer-Encoding: gzip")),
        bad("chunks not last", head("Transfer-Encoding: chunked, gzip")),
        bad("chunks in HTTP/1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec()),
    ]
}

#[tokio::test]
async fn a_refusal_before_the_router_looks_like_all_others() {
    let server = start(Limits::default()).await;
    for (what, bytes, status, code) in bad_heads() {
        is_problem(what, &server.exchange(&bytes).await, status, code);
    }
}

#[tokio::test]
async fn a_bad_head_behind_good_requests_takes_nothing_from_their_answers() {
    let server = start(Limits::default()).await;
    let good = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    for (what, bytes, status, code) in bad_heads() {
        let mut pipelined = good.repeat(3).into_bytes();
        pipelined.extend(bytes);
        let text = server.exchange(&pipelined).await;
        let answers: Vec<_> = text.split("hello\n").collect();
        assert_eq!(answers.len(), 4, "{what}: {text}");
        assert!(answers[..3].iter().all(|answer| answer.starts_with("HTTP/1.1 200 ")), "{what}: {text}");
        is_problem(what, answers[3], status, code);
    }
}

/// Both lengths: read as RFC 9112 says, by the chunks alone, and the connection ends, so that nothing is smuggled in.
#[tokio::test]
async fn of_two_lengths_the_chunks_count_and_nothing_after_them() {
    let server = start(Limits::default()).await;
    let (length, chunked) = ("Content-Length: 4", "Transfer-Encoding: chunked");
    for lines in [format!("{length}\r\n{chunked}"), format!("{chunked}\r\n{length}")] {
        let head = format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{lines}");
        let behind = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let text =
            server.exchange(format!("{head}\r\n\r\n4\r\n\"ab\"\r\n0\r\n\r\n{behind}").as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\nab"), "{text}");
        assert!(text.contains("connection: close"), "{text}");
    }
}
