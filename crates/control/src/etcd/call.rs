//! One call of etcd's gateway: an HTTP request with a body of JSON, and an answer of one JSON value, or of several, each when
//! there is something to say.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use base::{AlignedBuf, Bytes, KIB};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use link::tls::Channel;
use runtime::{Address, Class, Handle, Task};
use serde_json::Value;
use wire::LocalBoxFuture;

/// Most bytes of one value: far more than what is kept there.
const VALUE_MAX: usize = 1 << 20;

/// Nobody answered, and why.
#[derive(Debug)]
pub(super) struct Gone {
    /// Whether the request may have been done.
    pub(super) was_sent: bool,
    pub(super) why: String,
}

/// A value that was answered.
#[derive(Debug)]
pub(super) struct Answer {
    /// Whether the status says that it was done.
    pub(super) is_good: bool,
    pub(super) value: Value,
}

/// Answers that come one after the other. Dropped, it ends the connection.
pub(super) struct Answers {
    is_good: bool,
    body: Incoming,
    /// What came and was not looked at yet.
    rest: Vec<u8>,
    _connection: Task<()>,
}

/// Calls `path` of the member at `endpoint`, over a stream that was made for it, as whoever has the token.
pub(super) async fn call(
    handle: &Handle,
    stream: Channel,
    endpoint: &Address,
    token: Option<&str>,
    path: &str,
    body: &Value,
) -> std::result::Result<Answers, Gone> {
    let unsent = |why: String| Gone { was_sent: false, why };
    let handshake = hyper::client::conn::http1::handshake(Connection::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| unsent(error.to_string()))?;
    let running = async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to etcd ended");
        }
    };
    let connection = handle.spawn(Class::Io, "a connection to etcd", running);
    let host = match endpoint {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(_) => "etcd".into(),
    };
    let mut request = hyper::Request::post(path)
        .header(hyper::header::HOST, host)
        .header(hyper::header::CONTENT_TYPE, "application/json");
    if let Some(token) = token {
        request = request.header(hyper::header::AUTHORIZATION, token);
    }
    let request = request.body(Full::new(Bytes::from(body.to_string())));
    let request = request.map_err(|error| unsent(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(sent)?;
    let is_good = response.status().is_success();
    Ok(Answers { is_good, body: response.into_body(), rest: Vec::new(), _connection: connection })
}

fn sent(error: hyper::Error) -> Gone {
    Gone { was_sent: true, why: error.to_string() }
}

impl Answers {
    /// The next value; none: it was the last one.
    pub(super) async fn next(&mut self) -> std::result::Result<Option<Answer>, Gone> {
        loop {
            let mut values = serde_json::Deserializer::from_slice(&self.rest).into_iter::<Value>();
            match values.next() {
                Some(Ok(value)) => {
                    let end = values.byte_offset();
                    self.rest.drain(..end);
                    return Ok(Some(Answer { is_good: self.is_good, value }));
                }
                Some(Err(error)) if !error.is_eof() || self.rest.len() > VALUE_MAX => {
                    return Err(Gone { was_sent: true, why: format!("it does not speak JSON ({error})") });
                }
                _ => {}
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame.map_err(sent)?.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}

type Receiving = LocalBoxFuture<'static, (std::io::Result<usize>, AlignedBuf)>;
type Sending = LocalBoxFuture<'static, std::io::Result<()>>;

/// A stream of `runtime` as hyper wants it.
pub(super) struct Connection {
    stream: Channel,
    receiving: Option<Receiving>,
    /// What was received, and from where on it was not read yet.
    received: Option<(Bytes, usize)>,
    sending: Option<Sending>,
}

impl Connection {
    pub(super) fn new(stream: Channel) -> Connection {
        Connection { stream, receiving: None, received: None, sending: None }
    }
}

/// What is received at a time.
const ROOM: usize = 16 * KIB as usize;

impl Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        loop {
            if let Some((bytes, from)) = &mut self.received {
                let len = (bytes.len() - *from).min(into.remaining());
                into.put_slice(&bytes[*from..*from + len]);
                *from += len;
                if *from == bytes.len() {
                    self.received = None;
                }
                return Poll::Ready(Ok(()));
            }
            let stream = self.stream.clone();
            let receiving = self.receiving.get_or_insert_with(|| {
                Box::pin(async move { stream.receive_more(AlignedBuf::with_capacity(ROOM), ROOM).await })
            });
            let (count, buffer) = ready!(receiving.as_mut().poll(cx));
            self.receiving = None;
            match count? {
                0 => return Poll::Ready(Ok(())),
                _ => self.received = Some((buffer.freeze(), 0)),
            }
        }
    }
}

impl Write for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        ready!(self.as_mut().poll_flush(cx))?;
        let (stream, data) = (self.stream.clone(), Bytes::copy_from_slice(bytes));
        let mut sending: Sending = Box::pin(async move { stream.send(vec![data]).await });
        match sending.as_mut().poll(cx) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => self.sending = Some(sending),
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let sent = ready!(sending.as_mut().poll(cx));
        self.sending = None;
        Poll::Ready(sent)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        self.stream.shutdown();
        Poll::Ready(Ok(()))
    }
}
