//! A request for a model: in, through the queue, and on its way.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode, header};
use pingora::protocols::http::ServerSession;
use switchyard_scheduler::{Outcome, Priority, Usage};

use super::{
    Gateway,
    account::Account,
    body::{self, BodyError},
    error::ApiError,
    forward::{Forward, Interrupted},
    headers::{Outbound, QUEUE_TTL, TTFT_GOALS, session},
    model_name::{self, Asked, Encoding},
    rewrite,
    routes::{Inference, ModelIn},
};
use crate::{
    backend::BackendState,
    config::{Model, Settings},
    dispatcher::{Arrival, Slot, Ticket, Tokens},
};

/// A request whose server is gone is given to so many others at most.
const MAX_OTHERS: usize = 7;
/// Of a prompt in JSON, about: enough to tell a long one from a short one until the answer says how many they were.
const BYTES_PER_TOKEN: u64 = 4;

/// A request that names its model.
struct Inquiry {
    inference: &'static Inference,
    /// The model as the request names it.
    asked: String,
    tokens: Tokens,
    /// How the body is written down; none when the model is in the query.
    encoding: Option<Encoding>,
    body: Bytes,
}

impl Gateway {
    /// A request on one of the inference paths.
    pub(super) async fn infer(
        &self,
        session: &mut ServerSession,
        account: &mut Account,
        slot: &mut Option<Slot>,
        inference: &'static Inference,
    ) -> Result<(), Interrupted> {
        let settings = self.dispatcher.settings();
        let body = read_body(session, account, &settings).await?;
        let mut inquiry = Box::pin(Inquiry::read(session, inference, body)).await.map_err(Interrupted::Failed)?;
        account.model(&inquiry.asked);
        let model = settings.find(&inquiry.asked);
        let known = model.map(|model| &**model);
        self.check_model(&settings, session.req_header(), &account.caller, &inquiry.asked, known)?;
        let Some(model) = model else {
            return Err(Interrupted::Failed(unknown_model(&settings, &inquiry.asked)));
        };
        account.model(&model.id);
        let arrival = arrival(&settings, model, &session.req_header().headers, inquiry.body.len());
        let mut arrival = Arrival { tokens: inquiry.tokens, ..arrival };
        let mut servers = 1 + model.others.len().min(MAX_OTHERS);
        drop(settings);
        loop {
            let granted = self.wait(session, account, &arrival).await?;
            let model = Arc::clone(&granted.model);
            *slot = Some(granted);
            // Only what goes upstream needs room for it.
            let sent = Box::pin(async {
                let query = session.req_header().uri.query();
                let (target, body) =
                    inquiry.rewrite(&model, query, arrival.priority).await.map_err(Interrupted::Failed)?;
                self.forward(session, account, slot, &model, &target, body, &mut inquiry.body).await
            });
            match sent.await {
                Err(Interrupted::Lost { error, may_have_arrived }) => {
                    servers -= 1;
                    let goes_on = servers > 0 && self.may_go_elsewhere(slot.as_ref(), may_have_arrived).await;
                    tracing::debug!(id = account.id(), may_have_arrived, goes_on, "a request lost its server");
                    if !goes_on {
                        return Err(Interrupted::Failed(error));
                    }
                }
                sent => return sent,
            }
            account.requeued();
            if let Some(mut lost) = slot.take() {
                // Nothing came of it, so nobody is to pay for it.
                lost.set_usage(Usage { prompt_tokens: Some(0), ..Usage::default() });
                // It has waited since it first came.
                arrival.place = Some(lost.place());
            }
        }
    }

    /// Whether a request to which nothing came back may go to another server: always if it cannot have arrived; else only
    /// if its server is gone, and with it whatever it had done for the request. Its scheduler knows by then.
    async fn may_go_elsewhere(&self, slot: Option<&Slot>, may_have_arrived: bool) -> bool {
        let Some(slot) = slot else { return false };
        let is_there = Box::pin(self.dispatcher.check(slot)).await;
        !(is_there && may_have_arrived)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one request, each from elsewhere")]
    pub(super) async fn forward(
        &self,
        session: &mut ServerSession,
        account: &mut Account,
        slot: &mut Option<Slot>,
        model: &Model,
        target: &str,
        body: Bytes,
        original: &mut Bytes,
    ) -> Result<(), Interrupted> {
        let settings = self.dispatcher.settings();
        let request_id = account.request_id.clone();
        let outbound = Outbound { model, headers: &settings.headers, request_id: &request_id };
        let length = body.len();
        let forward = Forward { upstreams: &self.upstreams, model, session, account, slot, original };
        forward.run(|client| outbound.request(client, target, length), body).await
    }

    /// Waits in the queue until it is the request's turn, the scheduler refuses it, or the client leaves.
    pub(super) async fn wait(
        &self,
        session: &mut ServerSession,
        account: &mut Account,
        arrival: &Arrival,
    ) -> Result<Slot, Interrupted> {
        let mut ticket: Ticket = {
            let tenant = account.caller.tenant.as_deref().map(|name| self.dispatcher.tenant(name));
            let (caller, tenant) = (account.caller.grant.clone(), tenant.unwrap_or_default());
            self.dispatcher.submit(Arrival { caller, tenant, ..arrival.clone() })
        };
        account.queued(ticket.seq().0, arrival.priority);
        let answer = tokio::select! {
            biased;
            answer = &mut ticket => answer,
            _ = session.read_body_or_idle(true) => return Err(Interrupted::ClientGone),
        };
        match answer {
            Ok(slot) => {
                account.dispatched(&slot.decision, slot.replica.index);
                Ok(slot)
            }
            Err(refusal) => {
                account.refused(&refusal);
                let no_endpoint = refusal.outcome == Outcome::RejectedTtl && !self.is_ready(&arrival.model.id);
                Err(Interrupted::Failed(ApiError::refused(&refusal, no_endpoint)))
            }
        }
    }

    pub(super) fn is_ready(&self, model: &str) -> bool {
        let backends = self.dispatcher.fleet().snapshots();
        backends.iter().any(|backend| backend.model == model && backend.state == BackendState::Ready)
    }
}

impl Inquiry {
    async fn read(session: &ServerSession, inference: &'static Inference, body: Bytes) -> Result<Self, ApiError> {
        if inference.model_in == ModelIn::Query {
            let asked = model_name::in_query(session.req_header().uri.query().unwrap_or_default())?;
            return Ok(Self { inference, asked, tokens: Tokens::default(), encoding: None, body });
        }
        let encoding = Encoding::of(session.get_header_bytes(header::CONTENT_TYPE), &body)?;
        let Asked { model, max_tokens } = model_name::in_body(&encoding, &body).await?;
        // The files in a form are no text.
        let prompt = if encoding == Encoding::Json { body.len() as u64 / BYTES_PER_TOKEN } else { 0 };
        let tokens = Tokens { prompt, max: max_tokens };
        Ok(Self { inference, asked: model, tokens, encoding: Some(encoding), body })
    }

    /// What the model server is asked for, and the body as it wants it.
    async fn rewrite(
        &self,
        model: &Model,
        query: Option<&str>,
        priority: Priority,
    ) -> Result<(String, Bytes), ApiError> {
        let Self { inference: Inference { upstream, .. }, asked, encoding, body, .. } = self;
        let renamed = match (&encoding, query) {
            (None, Some(query)) => rewrite::query(model, asked, query),
            _ => None,
        };
        let target = match renamed.as_deref().or(query) {
            Some(query) => format!("{upstream}?{query}"),
            None => (*upstream).to_owned(),
        };
        let body = match encoding {
            Some(encoding) => rewrite::body(model, asked, encoding, body.clone(), priority).await?,
            None => body.clone(),
        };
        Ok((target, body))
    }
}

pub(super) async fn read_body(
    session: &mut ServerSession,
    account: &mut Account,
    settings: &Settings,
) -> Result<Bytes, Interrupted> {
    let body = body::read(session, &settings.limits).await.map_err(|error| match error {
        BodyError::Refused(error) => {
            // What follows on the connection cannot be told from the rest of this body.
            session.set_keepalive(None);
            Interrupted::Failed(error)
        }
        BodyError::Gone => Interrupted::ClientGone,
    })?;
    account.body(body.len());
    Ok(body)
}

/// What the scheduler has to know of a request.
pub(super) fn arrival(settings: &Settings, model: &Arc<Model>, headers: &HeaderMap, bytes: usize) -> Arrival {
    let priority = headers.get(&settings.headers.priority).and_then(|value| Priority::parse(value.as_bytes()));
    let millis = |name: &HeaderName| headers.get(name)?.to_str().ok()?.trim().parse().ok().map(Duration::from_millis);
    Arrival {
        priority: priority.unwrap_or_default(),
        bytes: bytes as u64,
        ttl: millis(&QUEUE_TTL),
        ttft_goal: TTFT_GOALS.iter().find_map(millis),
        session: session(headers, &settings.headers.session),
        ..Arrival::new(Arc::clone(model))
    }
}

/// Says which models there are, the most similar first.
pub(crate) fn unknown_model(settings: &Settings, asked: &str) -> ApiError {
    const LISTED: usize = 10;
    const SIMILAR: f64 = 0.7;
    let names = settings
        .models
        .iter()
        .filter(|model| !model.unlisted)
        .flat_map(|model| std::iter::once(model.id.as_str()).chain(model.aliases.iter().map(String::as_str)));
    let near = names
        .map(|name| (strsim::jaro_winkler(&asked.to_lowercase(), &name.to_lowercase()), name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(similarity, _)| *similarity >= SIMILAR);
    let mut message = format!("there is no model `{asked}`");
    if let Some((_, near)) = near {
        message.push_str(&format!("; did you mean `{near}`?"));
    }
    let listed: Vec<_> =
        settings.models.iter().filter(|model| !model.unlisted).map(|model| model.id.as_str()).collect();
    let shown = listed[..listed.len().min(LISTED)].join(", ");
    match listed.len() {
        0 => message.push_str("; none is configured"),
        1..=LISTED => message.push_str(&format!("; there are: {shown}")),
        count => message.push_str(&format!("; there are {count}, among them: {shown}")),
    }
    ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).on("model")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::proxy::testing;

    #[test]
    fn an_unknown_model_is_answered_with_what_there_is() {
        let settings =
            |count: usize| testing::settings((0..count).map(|n| testing::model(&format!("qwen-{n}"))).collect());
        let message = |count, asked| unknown_model(&settings(count), asked).message.into_owned();
        assert_eq!(message(0, "x"), "there is no model `x`; none is configured");
        assert_eq!(
            message(2, "Qwen-1b"),
            "there is no model `Qwen-1b`; did you mean `qwen-1`?; there are: qwen-0, qwen-1"
        );
        assert_eq!(message(1, "llama"), "there is no model `llama`; there are: qwen-0");
        let many = message(40, "llama");
        assert!(many.contains("there are 40, among them: qwen-0, ") && !many.contains("qwen-10"), "{many}");
    }

    #[test]
    fn unlisted_models_are_not_told_of() {
        let mut hidden = testing::model("hidden");
        hidden.unlisted = true;
        assert!(!unknown_model(&testing::settings(vec![hidden]), "hiddem").message.contains("hidden"));
    }

    #[test]
    fn the_first_priority_header_counts_and_noise_is_normal() {
        let settings = testing::settings(vec![testing::model("m")]);
        let priority = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-llamaswap-priority", HeaderValue::from_static(value));
            }
            arrival(&settings, &settings.models[0], &headers, 0).priority.0
        };
        assert_eq!(priority(&[]), 0);
        assert_eq!(priority(&["interactive", "batch"]), 100);
        assert_eq!(priority(&["urgent", "batch"]), 0);
        assert_eq!(priority(&[" -9223372036854775808 "]), i64::MIN);
    }

    fn arrives(pairs: &[(&'static str, &str)]) -> Arrival {
        let settings = testing::settings(vec![testing::model("m")]);
        let pair = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"));
        arrival(&settings, &settings.models[0], &pairs.iter().map(pair).collect(), 0)
    }

    #[test]
    fn the_ttl_header_is_in_milliseconds() {
        let ttl = |value| arrives(&[("x-switchyard-queue-ttl-ms", value)]).ttl;
        assert_eq!(ttl("1500"), Some(Duration::from_millis(1_500)));
        assert_eq!(ttl("-1"), None);
        assert_eq!(ttl("soon"), None);
    }

    #[test]
    fn the_newer_name_of_the_goal_comes_first() {
        let goal = |pairs: &[_]| arrives(pairs).ttft_goal;
        assert_eq!(goal(&[("x-slo-ttft-ms", "500")]), Some(Duration::from_millis(500)));
        let both = [("x-slo-ttft-ms", "500"), ("x-llm-d-slo-ttft-ms", "250")];
        assert_eq!(goal(&both), Some(Duration::from_millis(250)));
        assert_eq!(
            goal(&[("x-llm-d-slo-ttft-ms", "fast"), ("x-slo-ttft-ms", "500")]),
            Some(Duration::from_millis(500))
        );
        assert_eq!(goal(&[]), None);
    }

    #[test]
    fn a_session_is_what_its_header_says() {
        let session = |value: &str| arrives(&[("x-session-id", value)]).session;
        assert!(session("a").is_some() && session("a") == session(" a ") && session("a") != session("b"));
        assert_eq!(session(""), None);
        assert_eq!(session(&"x".repeat(1000)), None, "longer than any name of a session");
    }
}
