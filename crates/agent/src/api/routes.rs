//! The routes of the API, and their handlers.

use super::error::ApiError;
use super::json::{Short, as_json, json};
use super::listener::{Peer, REQUEST};
use super::turns::Turns;
use super::writer::Writer;
use super::{capture, events, metrics};
use crate::board::{Board, Published, why};
use crate::commands::{Command, Looks, Reply};
use crate::store::Owner;
use crate::views::{
    AdmissionView, ApplyQuery, CaptureQuery, ClockView, ErrorBody, EventView, HostView, Last, LastQuery,
    PlanView, SetBody, StatusView, UplinkView, VnicChange, VnicView, WhyView,
};
use crate::windows::Windows;
use axum::extract::rejection::{JsonRejection, QueryRejection, StringRejection};
use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::http::{Extensions, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use serde::Serialize;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tidegate_evidence::CoresReport;
use tidegate_place::Capture;
use tokio::sync::oneshot;
use utoipa::OpenApi;

/// Longest wait for other changes of the same user.
const TURN: Duration = Duration::from_secs(8);
/// Longest wait for the reconciler.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for a fresh look at the places.
const LOOK: Duration = Duration::from_millis(300);
/// Longest body of a request, bytes.
const LONGEST: usize = 2 << 20;
/// Bytes of each frame that a capture may keep.
const SNAPLEN: std::ops::RangeInclusive<u32> = 64..=65535;

#[derive(Clone)]
pub struct Api {
    pub commands: mpsc::Sender<Command>,
    pub board: Board,
    pub capture: Option<Arc<dyn Capture>>,
    pub looks: Looks,
    pub turns: Turns,
    pub writer: Writer,
    pub windows: Windows,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidegate agent",
        description = "Contracts of virtual network interfaces: what is promised, whether it is kept, and why not. \
                       Rates are bits per second on the wire, directions are the VM's."
    ),
    paths(
        host,
        status,
        clock,
        cores,
        list,
        show,
        set,
        remove,
        uplinks,
        uplink,
        listen,
        plan,
        apply,
        why,
        capture_frames,
        metrics_text,
        openapi
    ),
    components(schemas(AdmissionView, EventView))
)]
struct Document;

fn routes() -> Vec<(&'static str, MethodRouter<Api>)> {
    vec![
        ("/v1/host", get(host)),
        ("/v1/status", get(status)),
        ("/v1/clock", get(clock)),
        ("/v1/cores", get(cores)),
        ("/v1/vnics", get(list)),
        ("/v1/vnics/{name}", get(show).patch(set).delete(remove)),
        ("/v1/vnics/{name}/why", get(why)),
        ("/v1/vnics/{name}/capture", get(capture_frames)),
        ("/v1/uplinks", get(uplinks)),
        ("/v1/uplinks/{name}", get(uplink)),
        ("/v1/events", get(listen)),
        ("/v1/plan", post(plan)),
        ("/v1/apply", post(apply)),
        ("/metrics", get(metrics_text)),
        ("/openapi.json", get(openapi)),
    ]
}

pub fn router(api: Api) -> Router {
    let all = routes().into_iter().fold(Router::new(), |router, (path, route)| router.route(path, route));
    // After the routes: the fallback for methods applies only to routes added before it.
    all.fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(api.clone(), one_change_per_user))
        .layer(axum::middleware::from_fn(whole_body))
        .layer(axum::middleware::map_response(close_after_answer))
        .with_state(api)
}

/// Reads the whole body before a handler runs: a body that does not come in time is refused, and keeps no handler busy.
async fn whole_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let refusal = match tokio::time::timeout(REQUEST, axum::body::to_bytes(body, LONGEST)).await {
        Ok(Ok(body)) => {
            if let Some(peer) = peer(&parts.extensions) {
                peer.note_request_complete();
            }
            return next.run(Request::from_parts(parts, body.into())).await;
        }
        Ok(Err(error)) if too_long(&error) => {
            let why = format!("the request's body is longer than {LONGEST} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, why)
        }
        Ok(Err(error)) => {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the request's body broke off: {error}"))
        }
        Err(_) => {
            let why = format!("the request's body did not come within {} s", REQUEST.as_secs());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, why)
        }
    };
    refusal.into_response()
}

/// Runs a user's changes one after the other, and other users' changes between them.
async fn one_change_per_user(State(api): State<Api>, request: Request, next: Next) -> Response {
    let user = peer(request.extensions()).map(|peer| peer.user);
    let Some(user) = user.filter(|_| request.method() != Method::GET) else { return next.run(request).await };
    let Ok(_turn) = tokio::time::timeout(TURN, api.turns.take(user)).await else {
        let why = format!("nothing was changed: other changes of user {user} take long; try again");
        return ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    next.run(request).await
}

fn peer(extensions: &Extensions) -> Option<&Peer> {
    extensions.get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| peer)
}

fn too_long(error: &axum::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<http_body_util::LengthLimitError>())
}

/// Closes each connection after one request: a client that stays keeps no place.
async fn close_after_answer(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    response
}

async fn unknown_path() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "this path does not exist; /openapi.json lists all paths")
}

async fn wrong_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not take this method; /openapi.json lists the methods",
    )
}

/// The host, its places and what is promised
#[utoipa::path(get, path = "/v1/host", responses((status = 200, body = HostView)))]
async fn host(State(api): State<Api>) -> Result<Response, ApiError> {
    look(&api).await;
    let host = api.writer.part(&api.board, |written| &written.host, |all| as_json(&all.host));
    host.await.map(json)
}

/// What needs a person, and the figures of the host beside it
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = StatusView)))]
async fn status(State(api): State<Api>) -> Result<Response, ApiError> {
    look(&api).await;
    let status = api.writer.part(&api.board, |written| &written.status, |all| as_json(&all.status));
    status.await.map(json)
}

/// The clocks of other hosts: offset, error, and what is exchanged with them
#[utoipa::path(get, path = "/v1/clock", responses((status = 200, body = ClockView)))]
async fn clock(State(api): State<Api>) -> Short<ClockView> {
    look(&api).await;
    Short(ClockView { peers: api.board.read().peers.clone() })
}

/// The CPUs, the work for frames on them, and the plan for both
#[utoipa::path(get, path = "/v1/cores", responses((status = 200, body = CoresReport), (status = 503, body = ErrorBody)))]
async fn cores(State(api): State<Api>) -> Result<Response, ApiError> {
    look(&api).await;
    if api.board.read().cores.is_none() {
        return Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "no place reports the CPUs: the agent has just been started, or its place `cores` does not answer; \
             `tidegate status` says why",
        ));
    }
    let cores = api.writer.part(&api.board, |written| &written.cores, |all| as_json(&all.cores));
    cores.await.map(json)
}

/// All vNICs, by name
#[utoipa::path(get, path = "/v1/vnics", params(LastQuery),
    responses((status = 200, body = Vec<VnicView>), (status = 400, body = ErrorBody)))]
async fn list(
    State(api): State<Api>,
    query: Result<Query<LastQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let last = last_of(query)?;
    look(&api).await;
    if let Some(last) = last {
        let (all, windows) = (api.board.read(), api.windows.clone());
        let within = move || all.vnics.values().map(|v| windows.view(v.clone(), last)).collect::<Vec<_>>();
        return api.writer.json_from(within).await;
    }
    let all = |all: &Arc<Published>| as_json(&all.vnics.values().collect::<Vec<_>>());
    api.writer.part(&api.board, |written| &written.vnics, all).await.map(json)
}

/// One vNIC
#[utoipa::path(get, path = "/v1/vnics/{name}",
    params(("name" = String, Path, description = "vNIC"), LastQuery),
    responses((status = 200, body = VnicView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn show(
    State(api): State<Api>,
    Path(name): Path<String>,
    query: Result<Query<LastQuery>, QueryRejection>,
) -> Result<Short<VnicView>, ApiError> {
    let last = last_of(query)?;
    look(&api).await;
    view_of_window(&api, &api.board.read(), &name, last).map(Short)
}

/// Returns a vNIC, with the figures of the window `last` if given.
fn view_of_window(api: &Api, all: &Published, name: &str, last: Option<Last>) -> Result<VnicView, ApiError> {
    let view = all.vnics.get(name).cloned().ok_or_else(|| ApiError::no_vnic(name))?;
    Ok(match last {
        Some(last) => api.windows.view(view, last),
        None => view,
    })
}

fn last_of(query: Result<Query<LastQuery>, QueryRejection>) -> Result<Option<Last>, ApiError> {
    query.map(|Query(query)| query.last).map_err(|e| bad_request(&e.body_text()))
}

/// Change single keys of a contract, live
#[utoipa::path(patch, path = "/v1/vnics/{name}", params(("name" = String, Path, description = "vNIC")),
    request_body = SetBody,
    responses((status = 200, body = VnicChange), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, description = "owned by another program, or not possible", body = ErrorBody),
        (status = 422, description = "cannot be kept", body = ErrorBody), (status = 503, body = ErrorBody),
        (status = 507, description = "cannot be saved", body = ErrorBody)))]
async fn set(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: Result<Json<SetBody>, JsonRejection>,
) -> Result<Response, ApiError> {
    let Json(body) = body.map_err(|e| bad_request(&e.body_text()))?;
    if body.set.is_empty() {
        return Err(bad_request("nothing to set: write {\"set\": {\"tx.max\": \"500mbit\"}}"));
    }
    let keys = body.set.into_iter().collect();
    ask(&api, |reply| Command::Set { name, keys, reply }).await
}

/// Remove a vNIC
#[utoipa::path(delete, path = "/v1/vnics/{name}", params(("name" = String, Path, description = "vNIC")),
    responses((status = 200, body = VnicChange), (status = 400, description = "others need it", body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "owned by another program, or not possible", body = ErrorBody),
        (status = 422, description = "the remaining contracts cannot be kept", body = ErrorBody),
        (status = 503, body = ErrorBody), (status = 507, description = "cannot be saved", body = ErrorBody)))]
async fn remove(State(api): State<Api>, Path(name): Path<String>) -> Result<Response, ApiError> {
    ask(&api, |reply| Command::Remove { name, reply }).await
}

/// All uplinks, by name
#[utoipa::path(get, path = "/v1/uplinks", responses((status = 200, body = Vec<UplinkView>)))]
async fn uplinks(State(api): State<Api>) -> Result<Response, ApiError> {
    look(&api).await;
    let all = |all: &Arc<Published>| as_json(&all.uplinks.values().collect::<Vec<_>>());
    api.writer.part(&api.board, |written| &written.uplinks, all).await.map(json)
}

/// One uplink
#[utoipa::path(get, path = "/v1/uplinks/{name}", params(("name" = String, Path, description = "uplink")),
    responses((status = 200, body = UplinkView), (status = 404, body = ErrorBody)))]
async fn uplink(State(api): State<Api>, Path(name): Path<String>) -> Result<Short<UplinkView>, ApiError> {
    look(&api).await;
    let view = api.board.read().uplinks.get(&name).cloned();
    view.map(Short).ok_or_else(|| ApiError::no_uplink(&name))
}

/// What happens from now on, as server-sent events, until the client hangs up
#[utoipa::path(get, path = "/v1/events",
    responses((status = 200, content_type = "text/event-stream", body = EventView), (status = 503, body = ErrorBody)))]
async fn listen(State(api): State<Api>) -> Result<Response, ApiError> {
    let events = api.board.events.listen().ok_or_else(|| {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "as many clients as may be listen to events; try again later",
        )
    })?;
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, events::body(events)).into_response())
}

/// What a text of contracts would change, and whether it can be kept; changes nothing
#[utoipa::path(post, path = "/v1/plan", params(ApplyQuery), request_body(content = String, content_type = "application/toml"),
    responses((status = 200, body = PlanView), (status = 400, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn plan(
    State(api): State<Api>,
    query: Result<Query<ApplyQuery>, QueryRejection>,
    text: Result<String, StringRejection>,
) -> Result<Response, ApiError> {
    submit(&api, query, text, true).await
}

/// Bring a text of contracts into force: its vNICs are made or changed, others stay
#[utoipa::path(post, path = "/v1/apply", params(ApplyQuery), request_body(content = String, content_type = "application/toml"),
    responses((status = 200, body = PlanView), (status = 400, body = ErrorBody),
        (status = 409, description = "owned by another program, or not possible", body = ErrorBody),
        (status = 422, description = "cannot be kept", body = ErrorBody), (status = 503, body = ErrorBody),
        (status = 507, description = "cannot be saved", body = ErrorBody)))]
async fn apply(
    State(api): State<Api>,
    query: Result<Query<ApplyQuery>, QueryRejection>,
    text: Result<String, StringRejection>,
) -> Result<Response, ApiError> {
    submit(&api, query, text, false).await
}

/// Waits until the board shows a fresh look at the places, but at most `LOOK`: a place may not answer.
async fn look(api: &Api) {
    let (seen, first) = api.looks.join();
    // One look serves all clients that wait when it begins.
    if !first || api.commands.send(Command::Look(api.looks.clone())).is_ok() {
        let _ = tokio::time::timeout(LOOK, seen).await;
    }
}

async fn submit(
    api: &Api,
    query: Result<Query<ApplyQuery>, QueryRejection>,
    text: Result<String, StringRejection>,
    dry_run: bool,
) -> Result<Response, ApiError> {
    let Query(ApplyQuery { origin, owner, prune, adopt }) = query.map_err(|e| bad_request(&e.body_text()))?;
    let text = text.map_err(|e| bad_request(&e.body_text()))?;
    let owner =
        owner.map_or(Ok(Owner::Api), |o| Owner::named(&o)).map_err(|e| bad_request(&e.to_string()))?;
    let origin = origin.unwrap_or_else(|| "API".into());
    let adopt = adopt.into();
    ask(api, |reply| Command::Apply { text, origin, owner, prune, adopt, dry_run, reply }).await
}

/// Why frames of a vNIC were late, throttled or dropped
#[utoipa::path(get, path = "/v1/vnics/{name}/why",
    params(("name" = String, Path, description = "vNIC"), LastQuery),
    responses((status = 200, body = WhyView), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
async fn why(
    State(api): State<Api>,
    Path(name): Path<String>,
    query: Result<Query<LastQuery>, QueryRejection>,
) -> Result<Short<WhyView>, ApiError> {
    let last = last_of(query)?;
    look(&api).await;
    let all = api.board.read();
    Ok(Short(why::why(&all, &view_of_window(&api, &all, &name, last)?)))
}

/// The frames of a vNIC as pcapng, until the client hangs up
#[utoipa::path(get, path = "/v1/vnics/{name}/capture",
    params(("name" = String, Path, description = "vNIC"), CaptureQuery),
    responses((status = 200, content_type = "application/x-pcapng"), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn capture_frames(
    State(api): State<Api>,
    Path(name): Path<String>,
    query: Result<Query<CaptureQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(CaptureQuery { snaplen }) = query.map_err(|e| bad_request(&e.body_text()))?;
    let snaplen = snaplen.unwrap_or(*SNAPLEN.end());
    if !SNAPLEN.contains(&snaplen) {
        return Err(bad_request(&format!("snaplen {snaplen}: it must be 64 to 65535 bytes")));
    }
    if !api.board.read().vnics.contains_key(&name) {
        return Err(ApiError::no_vnic(&name));
    }
    let place = api.capture.clone();
    let place =
        place.ok_or_else(|| ApiError::new(StatusCode::CONFLICT, "no place on this host can capture"))?;
    let body = capture::start(place, name, snaplen).await?;
    Ok(([(header::CONTENT_TYPE, "application/x-pcapng")], body).into_response())
}

/// Prometheus metrics (OpenMetrics text)
#[utoipa::path(get, path = "/metrics", responses((status = 200, content_type = "application/openmetrics-text")))]
async fn metrics_text(State(api): State<Api>) -> Result<Response, ApiError> {
    let write = |all: &Arc<Published>| {
        metrics::encode(Arc::clone(all)).map(String::into_bytes).map_err(|e| e.to_string())
    };
    let text = api.writer.part(&api.board, |written| &written.metrics, write).await?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

/// This document
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, content_type = "application/json")))]
async fn openapi() -> Short<utoipa::openapi::OpenApi> {
    Short(Document::openapi())
}

async fn ask<T: Serialize + Send + 'static>(
    api: &Api,
    command: impl FnOnce(Reply<T>) -> Command,
) -> Result<Response, ApiError> {
    let (reply, answer) = oneshot::channel();
    let gone = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the agent is shutting down");
    api.commands.send(command(reply)).map_err(|_| gone())?;
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => api.writer.json(answer?).await,
        Ok(Err(_)) => Err(gone()),
        Err(_) => Err(ApiError::stuck()),
    }
}

fn bad_request(what: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, what)
}

#[cfg(test)]
mod tests;
