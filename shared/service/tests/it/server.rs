//! The bounds of the server, met by clients that behave badly. Raw sockets: a good client library cannot.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use waybill_service::http::{BODY_LIMIT, HEADER_LIMIT, Json, Limits, bind, frame, serve_within};
use waybill_testkit::PATIENCE;

/// Longer than any time-out of these tests, shorter than the defaults.
const SHORT: Duration = Duration::from_millis(400);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    running: JoinHandle<std::io::Result<()>>,
}

pub(crate) async fn start(limits: Limits) -> Server {
    let routes = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/slow", get(async || tokio::time::sleep(3 * SHORT).await))
        .route("/echo", post(async |Json(body): Json<String>| body))
        .route("/deaf", post(async || "not read\n"));
    let listener = bind("HTTP_LISTEN", "127.0.0.1:0".parse().expect("address")).await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(serve_within(listener, frame(routes), limits, shutdown.clone()));
    Server { address, shutdown, running }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connects")
    }

    /// Sends and reads until the server closes.
    pub(crate) async fn exchange(&self, request: &[u8]) -> String {
        let mut socket = self.connect().await;
        socket.write_all(request).await.expect("takes the whole request");
        rest(&mut socket).await
    }
}

async fn rest(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut text)).await.expect("closes");
    read.expect("is closed, not reset");
    String::from_utf8(text).expect("text")
}

/// Reads one answer without a body, or with one of a known length.
async fn answer(socket: &mut TcpStream, until: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(until) {
        let byte = tokio::time::timeout(PATIENCE, socket.read_u8()).await.expect("answers").expect("is open");
        text.push(char::from(byte));
    }
    text
}

/// How long it takes until the server closes a connection.
async fn closed_after(socket: &mut TcpStream) -> Duration {
    let started = Instant::now();
    let mut scratch = [0; 1024];
    loop {
        match tokio::time::timeout(PATIENCE, socket.read(&mut scratch)).await.expect("closes") {
            Ok(0) | Err(_) => return started.elapsed(),
            Ok(_) => {}
        }
    }
}

fn is_about(time: Duration, expected: Duration) {
    let (least, most) = (expected.mul_f64(0.9), expected + Duration::from_secs(2));
    assert!((least..most).contains(&time), "{time:?} is not about {expected:?}");
}

#[tokio::test]
async fn a_body_that_is_too_large_gets_a_413_that_the_client_can_read() {
    let server = start(Limits::default()).await;
    let head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let large = "x".repeat(10 * 1024 * 1024);
    let chunk = format!("{:x}\r\n{}\r\n", 100_000, "x".repeat(100_000));
    for request in [
        // The client sends all of it before it reads, as many do.
        format!("{head}Content-Length: {}\r\n\r\n{large}", large.len()),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n", chunk.repeat(100)),
        // One byte too many, with and without a length.
        format!("{head}Content-Length: {}\r\n\r\n{}", BODY_LIMIT + 1, &large[..BODY_LIMIT + 1]),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n10001\r\n{}\r\n0\r\n\r\n", &large[..BODY_LIMIT + 1]),
    ] {
        let text = server.exchange(request.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 413 ") && text.contains("\"payload-too-large\""), "{text}");
        assert!(text.contains("connection: close"), "{text}");
    }
}

#[tokio::test]
async fn a_413_is_early() {
    let server = start(Limits::default()).await;
    // Announced, never sent.
    let head =
        "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\n";
    for expect in ["", "Expect: 100-continue\r\n"] {
        let started = Instant::now();
        let mut socket = server.connect().await;
        socket.write_all(format!("{head}{expect}\r\n").as_bytes()).await.expect("sends");
        let text = answer(&mut socket, "}").await;
        assert!(text.starts_with("HTTP/1.1 413 "), "no 100 for what is refused: {text}");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_gets_it() {
    let server = start(Limits::default()).await;
    let mut socket = server.connect().await;
    let head = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 4\r\n";
    socket.write_all(format!("{head}Expect: 100-continue\r\n\r\n").as_bytes()).await.expect("sends");
    assert_eq!(answer(&mut socket, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(b"\"ab\"").await.expect("sends");
    assert!(answer(&mut socket, "\r\n\r\nab").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_body_can_be_read() {
    let server = start(Limits::default()).await;
    let body = "x".repeat(BODY_LIMIT);
    let request = format!(
        "POST /deaf HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {BODY_LIMIT}\r\n\r\n{body}"
    );
    let text = server.exchange(request.as_bytes()).await;
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("not read\n"), "{text}");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let server = start(Limits::default()).await;
    let request = |size: usize| {
        format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: {}\r\n\r\n", "x".repeat(size))
    };
    let fits = server.exchange(request(HEADER_LIMIT - 100).as_bytes()).await;
    assert!(fits.starts_with("HTTP/1.1 200 "), "{fits}");
    for size in [HEADER_LIMIT + 1, 10 * HEADER_LIMIT] {
        let text = server.exchange(request(size).as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 431 "), "{size}: {text}");
    }
}

#[tokio::test]
async fn a_body_that_dribbles_is_408() {
    let server = start(Limits { http_body_timeout: SHORT, ..Limits::default() }).await;
    for framing in ["Content-Length: 1000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n3e8\r\n"] {
        let mut socket = server.connect().await;
        let head = format!("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{framing}");
        socket.write_all(head.as_bytes()).await.expect("sends");
        let started = Instant::now();
        let (mut reader, mut writer) = socket.into_split();
        let dribbling = tokio::spawn(async move {
            while writer.write_all(b"x").await.is_ok() {
                tokio::time::sleep(SHORT / 20).await;
            }
        });
        let mut text = String::new();
        while !text.ends_with('}') {
            let byte = tokio::time::timeout(PATIENCE, reader.read_u8()).await.expect("answers");
            text.push(char::from(byte.expect("is open")));
        }
        is_about(started.elapsed(), SHORT);
        assert!(text.starts_with("HTTP/1.1 408 ") && text.contains("\"request-timeout\""), "{text}");
        dribbling.abort();
    }
}

#[tokio::test]
async fn silent_dribbling_and_idle_connections_have_times_of_their_own() {
    let (header, keep_alive) = (SHORT, 4 * SHORT);
    let limits = Limits { http_header_timeout: header, http_keep_alive: keep_alive, ..Limits::default() };
    let server = start(limits).await;
    let mut silent = server.connect().await;
    is_about(closed_after(&mut silent).await, header);

    let started = Instant::now();
    let mut dribbling = server.connect().await;
    while dribbling.write_all(b"G").await.is_ok() {
        tokio::time::sleep(header / 20).await;
    }
    is_about(started.elapsed(), header);

    // Idle after an answer: longer than a head may take, and good for another request.
    let mut idle = server.connect().await;
    for _ in 0..2 {
        idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sends");
        assert!(answer(&mut idle, "hello\n").await.starts_with("HTTP/1.1 200 "));
        tokio::time::sleep(2 * header).await;
    }
    is_about(closed_after(&mut idle).await + 2 * header, keep_alive);

    // Idle, then half a head: the head's time counts.
    let mut half = server.connect().await;
    half.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sends");
    answer(&mut half, "hello\n").await;
    half.write_all(b"GET / HT").await.expect("sends");
    is_about(closed_after(&mut half).await, header);
}

#[tokio::test]
async fn a_handler_may_take_longer_than_a_head() {
    let server = start(Limits { http_header_timeout: SHORT, ..Limits::default() }).await;
    let text = server.exchange(b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

#[tokio::test]
async fn connections_are_bounded_and_the_next_waits() {
    let server = start(Limits { http_max_connections: 2, ..Limits::default() }).await;
    let (first, _second) = (server.connect().await, server.connect().await);
    let mut third = server.connect().await;
    third.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("the kernel takes it");
    let early = tokio::time::timeout(SHORT, third.read_u8()).await;
    assert!(early.is_err(), "no answer while two are open");
    drop(first);
    assert!(answer(&mut third, "hello\n").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_ends_running_requests() {
    let server = start(Limits::default()).await;
    let mut idle = server.connect().await;
    idle.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sends");
    answer(&mut idle, "hello\n").await;
    let mut busy = server.connect().await;
    busy.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sends");
    let mut silent = server.connect().await;
    // The server has seen all three once this one is answered.
    server.exchange(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    server.shutdown.cancel();
    assert!(closed_after(&mut idle).await < SHORT);
    assert!(closed_after(&mut silent).await < SHORT);
    let text = rest(&mut busy).await;
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("connection: close"), "{text}");
    tokio::time::timeout(PATIENCE, server.running).await.expect("ends").expect("runs").expect("no failure");
    assert!(TcpStream::connect(server.address).await.is_err(), "takes no new connection");
}
