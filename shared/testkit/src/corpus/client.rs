//! A client that sends what no good library does.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::PATIENCE;

#[derive(Debug, Clone)]
pub(super) struct Request {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Request {
    pub(super) fn new(method: &str, target: &str) -> Self {
        Self { method: method.to_owned(), target: target.to_owned(), headers: Vec::new(), body: None }
    }

    /// The same to another target.
    pub(super) fn to(&self, target: String) -> Self {
        Self { target, ..self.clone() }
    }

    /// One more header of that name.
    pub(super) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Without headers of that name.
    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|header| !header.0.eq_ignore_ascii_case(name));
        self
    }

    pub(super) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes =
            format!("{} {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", self.method, self.target)
                .into_bytes();
        for (name, value) in &self.headers {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        let given = self.headers.iter().any(|header| header.0.eq_ignore_ascii_case("content-length"));
        if let Some(body) = self.body.as_ref().filter(|_| !given) {
            bytes.extend(format!("Content-Length: {}\r\n", body.len()).into_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(self.body.iter().flatten());
        bytes
    }

    /// Sends it on a connection of its own, and reads until that is closed.
    pub(super) async fn send(&self, to: SocketAddr) -> Answer {
        let mut socket = TcpStream::connect(to).await.expect("connects");
        // Refused early, it may be closed before all is sent; what counts is the answer.
        drop(socket.write_all(&self.bytes()).await);
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await;
        read.unwrap_or_else(|_| panic!("no answer to {} {}", self.method, self.target))
            .expect("is closed, not reset");
        Answer::parse(&answer)
            .unwrap_or_else(|| panic!("no answer of HTTP/1.1 to {} {}: {answer:?}", self.method, self.target))
    }
}

impl Answer {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let header = |line: &str| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_ascii_lowercase(), value.to_owned()))
        };
        let headers: Vec<_> = lines.map(header).collect::<Option<_>>()?;
        let body = bytes[end + 4..].to_vec();
        let chunked = headers.iter().any(|header| header.0 == "transfer-encoding");
        let body = if chunked { chunks(&body)? } else { body };
        Some(Self { status, headers, body: String::from_utf8_lossy(&body).into_owned() })
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }
}

fn chunks(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).ok()?, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend(bytes.get(end + 2..end + 2 + size)?);
        bytes = bytes.get(end + 4 + size..)?;
    }
}
