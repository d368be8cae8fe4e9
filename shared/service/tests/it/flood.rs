//! 500 connections that want nothing, beside clients that want answers.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use waybill_service::http::Limits;

use crate::server::{Server, start};

const SOCKETS: u32 = 500;
const HEADER: Duration = Duration::from_secs(3);
const KEEP_ALIVE: Duration = Duration::from_secs(4);
const GETS: u32 = 100;
const PER_SECOND: u32 = 20;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Silent,
    Dribbling,
    IdleAfterAnAnswer,
}

/// Opens one, and says how long the server kept it from its last good moment on.
async fn nuisance(address: std::net::SocketAddr, kind: Kind) -> (Kind, Duration) {
    let mut socket = TcpStream::connect(address).await.expect("connects");
    if let Kind::IdleAfterAnAnswer = kind {
        socket.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sends");
        while socket.read_u8().await.expect("answers") != b'h' {}
    }
    let started = Instant::now();
    let mut scratch = [0; 512];
    loop {
        let wait = if matches!(kind, Kind::Dribbling) { Duration::from_millis(200) } else { 3 * KEEP_ALIVE };
        match tokio::time::timeout(wait, socket.read(&mut scratch)).await {
            Ok(Ok(0) | Err(_)) => return (kind, started.elapsed()),
            Ok(Ok(_)) => {}
            Err(_) if matches!(kind, Kind::Dribbling) => drop(socket.write_all(b"G").await),
            Err(_) => panic!("{kind:?} is kept open"),
        }
    }
}

/// Latencies of good requests at a constant rate, in order; the slowest last.
async fn latencies(server: &Server) -> Vec<Duration> {
    let client = reqwest::Client::builder().no_proxy().build().expect("client");
    let mut pace = tokio::time::interval(Duration::from_secs(1) / PER_SECOND);
    let mut requests = JoinSet::new();
    for _ in 0..GETS {
        pace.tick().await;
        let request = client.get(format!("http://{}/", server.address));
        requests.spawn(async move {
            let started = Instant::now();
            let answer = request.send().await.expect("answers");
            assert_eq!(answer.text().await.expect("whole"), "hello\n");
            started.elapsed()
        });
    }
    let mut all = requests.join_all().await;
    all.sort_unstable();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_idle_or_dribbling_sockets_harm_no_one_and_are_closed_in_time() {
    let limits = Limits { http_header_timeout: HEADER, http_keep_alive: KEEP_ALIVE, ..Limits::default() };
    let server = start(limits).await;
    let alone = latencies(&server).await;
    let mut nuisances = JoinSet::new();
    for n in 0..SOCKETS {
        let kind = [Kind::Silent, Kind::Dribbling, Kind::IdleAfterAnAnswer][n as usize % 3];
        nuisances.spawn(nuisance(server.address, kind));
    }
    let beside = latencies(&server).await;
    let kept = nuisances.join_all().await;
    for (kind, time) in &kept {
        let stated = if matches!(kind, Kind::IdleAfterAnAnswer) { KEEP_ALIVE } else { HEADER };
        let bounds = stated.mul_f64(0.9)..stated + Duration::from_millis(1500);
        assert!(bounds.contains(time), "{kind:?} was closed after {time:?}, stated {stated:?}");
    }
    let at = |all: &[Duration], share: usize| all[(all.len() - 1) * share / 100];
    let longest = |wanted: fn(&Kind) -> bool| kept.iter().filter(|(k, _)| wanted(k)).map(|(_, t)| *t).max();
    println!(
        "{SOCKETS} sockets beside {PER_SECOND} GET/s: p50 {:?}, p99 {:?} (alone: p50 {:?}, p99 {:?}); closed at the \
         latest after: silent {:?}, dribbling {:?} (stated {HEADER:?}), idle {:?} (stated {KEEP_ALIVE:?})",
        at(&beside, 50),
        at(&beside, 99),
        at(&alone, 50),
        at(&alone, 99),
        longest(|k| matches!(k, Kind::Silent)),
        longest(|k| matches!(k, Kind::Dribbling)),
        longest(|k| matches!(k, Kind::IdleAfterAnAnswer)),
    );
    // Ten times the quiet p99 or 100 ms: neighbours on the machine must not fail the test, a queue of 500 must.
    let bound = (at(&alone, 99) * 10).max(Duration::from_millis(100));
    assert!(at(&beside, 99) < bound, "p99 {:?} is over {bound:?}", at(&beside, 99));
}
