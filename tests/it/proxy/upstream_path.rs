//! `/upstream/MODEL/…`.

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Gateway, demo_model};

#[tokio::test]
async fn anything_goes_to_the_model_as_it_came() {
    let models = [demo_model("m", ""), demo_model("org/m", "")].concat();
    let gateway = Gateway::start(&format!("models:\n{models}"));
    for (path, seen) in [("/upstream/m/echo/a%20b?x=%2F&y", "/echo/a%20b"), ("/upstream/org/m/echo/c", "/echo/c")] {
        let request = gateway.client.request(reqwest::Method::PATCH, gateway.url(path)).body("hi");
        let answer = request.header("x-llamaswap-priority", "5").send().await.expect("an answer");
        assert_eq!(answer.headers()["x-switchyard-score"], "5.000");
        let model = if path.contains("org") { "demo-org/m-" } else { "demo-m-" };
        assert!(answer.headers()["x-demo-backend"].to_str().expect("ASCII").starts_with(model), "{path}");
        let echo: Value = answer.json().await.expect("JSON");
        assert_eq!((&echo["method"], &echo["path"]), (&"PATCH".into(), &seen.into()));
        assert_eq!((&echo["body_bytes"], &echo["headers"]["x-llamaswap-priority"]), (&2.into(), &Value::Null));
    }
    let echo = gateway.get_json("/upstream/m/echo/a?x=%2F&y").await;
    assert_eq!(echo["query"], "x=%2F&y");
}

#[tokio::test]
async fn an_ignored_path_does_not_load_its_model() {
    let ignored = "upstream: {ignorePaths: ['^/echo/.*\\.css$']}";
    let gateway = Gateway::start(&format!("{ignored}\nmodels:\n{}", demo_model("m", "")));
    let statuses = async |paths: [&str; 2]| {
        let mut statuses = Vec::new();
        for path in paths {
            let answer =
                gateway.client.get(gateway.url(&format!("/upstream/m{path}"))).send().await.expect("an answer");
            statuses.push(answer.status().as_u16());
        }
        statuses
    };
    assert_eq!(statuses(["/echo/a.css", "/echo/b%2Ecss?x"]).await, [409, 409]);
    assert_eq!(gateway.get_json("/running").await["running"], serde_json::json!([]));
    assert_eq!(statuses(["/echo/a.txt", "/echo/a.css"]).await, [200, 200]);
}

#[tokio::test]
async fn a_name_without_a_slash_is_sent_on() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
    let answer = client.get(gateway.url("/upstream/m?a=1")).send().await.expect("an answer");
    assert_eq!((answer.status().as_u16(), &answer.headers()["location"]), (301, &"/upstream/m/?a=1".parse().unwrap()));
    let answer = client.post(gateway.url("/upstream/m")).send().await.expect("an answer");
    assert_eq!(answer.status(), 308);
}

#[tokio::test]
async fn websockets_hold_a_slot_and_give_it_back() {
    let gateway = Gateway::start(&format!("models:\n{}", demo_model("m", "")));
    let url = format!("ws://{}/upstream/m/ws", gateway.address);
    let (mut socket, answer) = tokio_tungstenite::connect_async(url).await.expect("a websocket");
    let id = answer.headers()["x-request-id"].to_str().expect("ASCII").to_owned();
    for text in ["hello", "again"] {
        socket.send(Message::text(text)).await.expect("it is taken");
        assert_eq!(socket.next().await.expect("an echo").expect("an echo"), Message::text(text));
    }
    gateway.wait_until_running(1.0).await;
    socket.close(None).await.expect("it is taken");
    drop(socket);
    gateway.wait_until_running(0.0).await;
    let row = gateway.activity(&id).await["request"].clone();
    assert_eq!((&row["status"], &row["outcome"]), (&101.into(), &"dispatched".into()));
}
