//! Pooled connections that are no more.

use serde_json::json;

use super::raw::{Raw, Upstream, post};
use crate::support::Gateway;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

/// A connection that the gateway has used once and keeps, and a client that waits for nothing.
async fn pooled(gateway: &Gateway, upstream: &Upstream) -> (Raw, Raw) {
    let mut client = Raw::connect(gateway.address).await;
    client.send(post("/v1/completions", "", &json!({"model": "m"}))).await;
    let mut server = upstream.accept().await;
    server.message().await.expect("a request");
    server.send(OK).await;
    assert_eq!(client.message().await.expect("an answer").status(), 200);
    (client, server)
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_not_used() {
    let upstream = Upstream::bind().await;
    let gateway = Gateway::start(&upstream.model());
    for _ in 0..20 {
        let (mut client, server) = pooled(&gateway, &upstream).await;
        drop(server);
        client.send(post("/v1/completions", "", &json!({"model": "m"}))).await;
        let mut server = upstream.accept().await;
        server.message().await.expect("a request");
        server.send(OK).await;
        drop(server);
        assert_eq!(client.message().await.expect("an answer").status(), 200);
    }
}

#[tokio::test]
async fn a_post_that_the_server_may_have_read_is_not_sent_again() {
    let upstream = Upstream::bind().await;
    let gateway = Gateway::start(&upstream.model());
    let (mut client, mut server) = pooled(&gateway, &upstream).await;
    client.send(post("/v1/completions", "", &json!({"model": "m"}))).await;
    server.message().await.expect("the same connection is used again");
    drop(server);
    let answer = client.message().await.expect("an answer");
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.json()["error"]["code"], "model_server_failed");
}

#[tokio::test]
async fn a_get_is_sent_again_once() {
    let upstream = Upstream::bind().await;
    let gateway = Gateway::start(&upstream.model());
    let (mut client, mut server) = pooled(&gateway, &upstream).await;
    client.send("GET /v1/audio/voices?model=m HTTP/1.1\r\nHost: t\r\n\r\n").await;
    server.message().await.expect("the same connection is used again");
    drop(server);
    let mut server = upstream.accept().await;
    let again = server.message().await.expect("a request");
    assert_eq!(again.start, "GET /v1/audio/voices?model=m HTTP/1.1");
    drop(server);
    assert_eq!(client.message().await.expect("an answer").status(), 502, "a new connection is not stale");
}
