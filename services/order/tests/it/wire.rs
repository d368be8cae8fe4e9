//! A proxy before PostgreSQL that counts what requests send: the only witness of round trips that no setting of
//! the driver or of the server can mislead. The relay's bell, which rings behind the requests, is left out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Round trips since the start of the proxy.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// A Sync with an Execute before it, or a simple query: a statement that was run.
    statements: AtomicUsize,
    /// A Sync with a Parse but no Execute before it: a statement that was prepared.
    prepared: AtomicUsize,
}

impl Counts {
    pub(crate) fn get(&self) -> (usize, usize) {
        (self.statements.load(Ordering::SeqCst), self.prepared.load(Ordering::SeqCst))
    }
}

/// Starts a proxy to `server`.
pub(crate) async fn proxy(server: String) -> (SocketAddr, Arc<Counts>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let address = listener.local_addr().expect("address");
    let counts = Arc::new(Counts::default());
    let counted = counts.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (from_client, mut to_client) = client.into_split();
            let (mut from_server, to_server) =
                TcpStream::connect(&server).await.expect("server").into_split();
            tokio::spawn(forward(from_client, to_server, counted.clone()));
            tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
        }
    });
    (address, counts)
}

async fn forward(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    counts: Arc<Counts>,
) -> std::io::Result<()> {
    // The first message has no type; the URL of the test switches TLS off, so it is the start-up.
    let length = client.read_u32().await?;
    server.write_u32(length).await?;
    pass(&mut client, &mut server, length - 4).await?;
    let (mut parse, mut execute, mut bell) = (false, false, false);
    loop {
        let kind = client.read_u8().await?;
        let length = client.read_u32().await?;
        match kind {
            b'P' => parse = true,
            b'E' => execute = true,
            b'Q' => {
                counts.statements.fetch_add(1, Ordering::SeqCst);
            }
            b'S' if !bell => {
                if std::mem::take(&mut execute) {
                    counts.statements.fetch_add(1, Ordering::SeqCst);
                } else if parse {
                    counts.prepared.fetch_add(1, Ordering::SeqCst);
                }
                parse = false;
            }
            _ => {}
        }
        let mut head = [0; 5];
        head[0] = kind;
        head[1..].copy_from_slice(&length.to_be_bytes());
        server.write_all(&head).await?;
        let content = pass(&mut client, &mut server, length - 4).await?;
        bell |= kind == b'P' && content.windows(7).any(|bytes| bytes == b"notify ");
    }
}

async fn pass(
    client: &mut OwnedReadHalf,
    server: &mut OwnedWriteHalf,
    length: u32,
) -> std::io::Result<Vec<u8>> {
    let mut rest = vec![0; length as usize];
    client.read_exact(&mut rest).await?;
    server.write_all(&rest).await?;
    Ok(rest)
}
