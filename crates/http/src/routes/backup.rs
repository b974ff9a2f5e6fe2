//! A copy of the store.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use control::ControlError;
use domain::SessionId;
use futures::stream;
use tokio::io::AsyncReadExt;

use crate::api::Doors;
use crate::authenticate::Caller;
use crate::error::ApiError;

/// Bytes that are sent at a time.
const PIECE: usize = 256 << 10;

/// Take a consistent copy of the store while it is in use. It holds everything that was ever said here. Admins only.
#[utoipa::path(post, path = "/backup", tag = "store", responses((status = 200, description = "The copy, for `belljar restore`.", body = Vec<u8>, content_type = "application/octet-stream")))]
pub(crate) async fn backup(State(doors): State<Doors>, caller: Caller) -> Result<impl IntoResponse, ApiError> {
    let path = doors.scratch.join(format!("backup-{}", SessionId::new()));
    doors
        .store
        .backup(caller.asker(), &path)
        .await
        .map_err(ControlError::from)?;
    let opened = tokio::fs::File::open(&path).await;
    // It lives on as long as it is open here, whatever becomes of this process or of the one who fetches it.
    let removed = tokio::fs::remove_file(&path).await;
    let file = opened
        .and_then(|file| removed.map(|()| file))
        .map_err(|error| ApiError::fault("hand out the copy of the store", &error))?;
    let pieces = stream::try_unfold(file, |mut file| async move {
        let mut piece = vec![0; PIECE];
        let length = file.read(&mut piece).await?;
        piece.truncate(length);
        Ok::<_, std::io::Error>((length > 0).then_some((piece, file)))
    });
    let headers = [
        (CONTENT_TYPE, "application/octet-stream"),
        (CONTENT_DISPOSITION, "attachment; filename=\"belljar.backup\""),
    ];
    Ok((headers, Body::from_stream(pieces)))
}
