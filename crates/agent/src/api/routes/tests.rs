//! Routes against the documented ones, and answers to bad requests.

use super::*;
use axum::body::Body;
use axum::http::Request;
use std::collections::BTreeSet;
use tower::ServiceExt;

const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

struct Endless;

impl axum::body::HttpBody for Endless {
    type Data = axum::body::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

fn api() -> (Api, mpsc::Receiver<Command>) {
    let (commands, receiver) = mpsc::channel();
    let board = Board::new(Published::starting());
    let api = Api {
        commands,
        board,
        capture: None,
        looks: Looks::default(),
        turns: Turns::default(),
        writer: Writer::default(),
        windows: Windows::default(),
    };
    (api, receiver)
}

/// Returns the status of a request. The reconciler is gone, so no route waits for it.
async fn status(method: &str, path: &str) -> StatusCode {
    let (api, receiver) = api();
    drop(receiver);
    let request = Request::builder().method(method.to_uppercase().as_str()).uri(path);
    let request = request.body(Body::empty()).unwrap();
    router(api).oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn the_document_names_every_route_and_no_other() {
    let document = serde_json::to_value(Document::openapi()).unwrap();
    let documented: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().keys().filter(|k| METHODS.contains(&k.as_str()));
            methods.map(move |m| (path.clone(), m.clone()))
        })
        .collect();
    let mut answered = BTreeSet::new();
    for (path, _) in routes() {
        for method in METHODS {
            if status(method, &path.replace("{name}", "x")).await != StatusCode::METHOD_NOT_ALLOWED {
                answered.insert((path.to_owned(), method.to_owned()));
            }
        }
    }
    assert_eq!(documented, answered);
    assert_eq!(status("get", "/v2").await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_request_without_an_answer_gets_an_error_status() {
    assert_eq!(status("get", "/v1/vnics/x").await, StatusCode::NOT_FOUND);
    assert_eq!(status("get", "/v1/vnics/x/why").await, StatusCode::NOT_FOUND);
    assert_eq!(status("get", "/v1/vnics/x/why?last=1m").await, StatusCode::NOT_FOUND);
    for path in ["/v1/vnics?last=2m", "/v1/vnics/x?last=", "/v1/vnics/x/why?first=1m"] {
        assert_eq!(status("get", path).await, StatusCode::BAD_REQUEST, "{path}");
    }
    assert_eq!(status("get", "/v1/vnics?last=10s").await, StatusCode::OK);
    assert_eq!(status("get", "/v1/vnics/x/capture").await, StatusCode::NOT_FOUND);
    assert_eq!(status("get", "/v1/vnics/x/capture?snaplen=1").await, StatusCode::BAD_REQUEST);
    assert_eq!(status("get", "/v1/vnics/x/capture?snaplen=many").await, StatusCode::BAD_REQUEST);
    assert_eq!(status("patch", "/v1/vnics/x").await, StatusCode::BAD_REQUEST);
    assert_eq!(status("delete", "/v1/vnics/x").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status("post", "/v1/apply?prune=perhaps").await, StatusCode::BAD_REQUEST);
    assert_eq!(status("post", "/v1/apply?owner=file:/etc/x.toml").await, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_end_is_refused() {
    let ask = async |body| {
        let request = Request::builder().method("POST").uri("/v1/plan").body(body).unwrap();
        let began = tokio::time::Instant::now();
        let status = router(api().0).oneshot(request).await.unwrap().status();
        (status, began.elapsed())
    };
    let (status, took) = ask(Body::new(Endless)).await;
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
    assert!(took >= REQUEST && took < 2 * REQUEST, "{took:?}");
    let (status, _) = ask(Body::from(vec![b' '; LONGEST + 1])).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn a_wrong_method_is_answered_with_what_to_do() {
    let request = Request::builder().method("PUT").uri("/v1/vnics").body(Body::empty()).unwrap();
    let response = router(api().0).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
    let body: ErrorBody = serde_json::from_slice(&body).expect("an error like all others");
    assert!(body.error.contains("/openapi.json"), "{body:?}");
}
