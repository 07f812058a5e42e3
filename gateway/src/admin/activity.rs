//! The activity log over HTTP.

use http::StatusCode;

use crate::{
    proxy::{Gateway, error::ApiError, reply::Reply},
    telemetry::{Filter, QueryError},
};

/// `GET /api/activity?…`.
pub(super) async fn list(gateway: &Gateway, query: Option<&str>) -> Result<Reply, ApiError> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let filter = Filter::from_pairs(pairs)
        .map_err(|error| ApiError::bad_request("invalid_query", format!("cannot use the query: {error}")))?;
    json(&gateway.activity.query(filter).await.map_err(unreadable)?)
}

/// `GET /api/activity/ID`: why one request waited, as JSON or in words.
pub(super) async fn item(gateway: &Gateway, id: &str, as_text: bool) -> Result<Reply, ApiError> {
    let Some(explanation) = gateway.activity.explain(id).await.map_err(unreadable)? else {
        let message = format!("the activity log knows no request `{id}`: it may still run, or its row has made room");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "request_not_found", message));
    };
    if as_text { Ok(Reply::text(explanation.to_string())) } else { json(&explanation) }
}

fn json(document: &impl serde::Serialize) -> Result<Reply, ApiError> {
    let text = serde_json::to_vec(document)
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))?;
    Ok(Reply::json(StatusCode::OK, text))
}

fn unreadable(error: QueryError) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "activity_unreadable", error.to_string())
}
