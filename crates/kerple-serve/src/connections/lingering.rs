//! Bodies that are refused before they have arrived: the server reads and discards for a short time
//! what the client still sends. Otherwise the client would find the connection broken and never
//! read the reason.

use axum::body::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Time without a byte, time in all, and bytes, after which no more is thrown away.
const IDLE: Duration = Duration::from_millis(300);
const MOST: Duration = Duration::from_secs(5);
const MOST_BYTES: usize = 256 << 20;

/// A body whose rest is thrown away where nobody reads it.
pub(super) struct Lingering(Option<Incoming>);

impl Lingering {
    pub(super) fn new(body: Incoming) -> Lingering {
        Lingering(Some(body))
    }
}

impl Body for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let rest = self.0.take().filter(|body| !body.is_end_stream());
        if let (Some(rest), Ok(runtime)) = (rest, Handle::try_current()) {
            runtime.spawn(timeout(MOST, throw_away(rest)));
        }
    }
}

async fn throw_away(mut body: Incoming) {
    let mut thrown = 0;
    while let Ok(Some(Ok(frame))) = timeout(IDLE, body.frame()).await {
        thrown += frame.data_ref().map_or(0, Bytes::len);
        if thrown > MOST_BYTES {
            return;
        }
    }
}
