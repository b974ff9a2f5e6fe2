//! Bodies of requests: read whole, or thrown away.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};
use protocol::{SERVICE_REQUEST_BYTES, ServiceFailure};
use tokio::time::timeout;

/// How long the body of a call may take.
const TIME: Duration = Duration::from_secs(30);

/// How much of a refused request is thrown away, and for how long: by whoever reads no answer before all is sent.
const THROWN: usize = 64 << 20;
const THROWN_TIME: Duration = Duration::from_secs(10);

/// The whole of a call of a service.
pub(super) async fn call(body: &mut Incoming) -> Result<Bytes, ServiceFailure> {
    let too_long = || {
        let words = format!("the call is longer than {SERVICE_REQUEST_BYTES} bytes, or was cut");
        ServiceFailure::new(413, "too_long", words).remedy("send less at once")
    };
    if body.size_hint().lower() > u64::try_from(SERVICE_REQUEST_BYTES).unwrap_or(u64::MAX) {
        return Err(too_long());
    }
    match timeout(TIME, Limited::new(body, SERVICE_REQUEST_BYTES).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(_)) => Err(too_long()),
        Err(_) => Err(ServiceFailure::new(408, "timeout", "the call took too long to be sent")),
    }
}

/// Throws away what nobody read of a request. A connection that is closed before is reset, and whoever still sends never
/// reads why.
pub(super) async fn throw_away(mut body: Incoming) {
    let thrown = async {
        let mut left = THROWN;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    // Whoever takes longer finds a reset.
    let _ = timeout(THROWN_TIME, thrown).await;
}
