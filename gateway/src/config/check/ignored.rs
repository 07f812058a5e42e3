//! Settings that have no effect, most of them llama-swap's own: each gets a word at start.

use std::time::Duration;

use switchyard_scheduler::FairnessSettings;

use super::Check;
use crate::config::{
    file::ModelFile,
    routing::{RoutingFile, Scheduler},
};

const WITHOUT_FLOW: &str = "has no effect without routing.scheduler.use: flow";

impl Check<'_> {
    /// Names the settings that llama-swap acts upon and this gateway does not.
    pub(super) fn without_effect(&mut self) {
        let file = self.file;
        if let Some(buffer) = file.capture_buffer.as_ref().filter(|buffer| buffer.value > 0) {
            self.warn(buffer, "has no effect: requests and responses are never stored");
        }
        if let Some(at) = &file.session_id {
            self.warn(at, "has no effect: requests are listed without their session");
        }
        if let Some(at) = &file.performance {
            self.warn(at, "has no effect: /metrics has the gateway's own numbers, not the machine's");
        }
        if let Some(at) = file.log_to_stdout.as_ref().filter(|at| !at.value) {
            self.warn(at, "has no effect: standard error has the gateway's log, /logs the models' output");
        }
        if let Some(at) = &file.log_time_format {
            self.warn(at, "has no effect: times are RFC 3339");
        }
        if let Some(at) = file.log_requests.as_ref().filter(|at| at.value) {
            self.warn(at, "has no effect: /api/activity lists requests");
        }
        if file.send_loading_state.value {
            let at = &file.send_loading_state;
            self.warn(at, "has no effect yet: waiting clients are not told how far the load is");
        }
        let shed = &file.routing.admission.shed_when_saturated;
        if shed.value && file.routing.scheduler.value != Scheduler::Flow {
            self.warn(shed, WITHOUT_FLOW);
        }
        self.flow_without_effect();
        if let Some((name, _)) = file.selectors.first() {
            self.warn(name, "has no effect yet: requests for selectors get 404; name a model");
        }
        if let Some((name, _)) = file.profiles.first() {
            self.warn(name, "has no effect yet: names are never replaced; use aliases");
        }
    }

    fn flow_without_effect(&mut self) {
        let RoutingFile { scheduler, flow, .. } = &self.file.routing;
        let levels = flow.bands.iter().map(|band| band.policies);
        let mut policies = levels.chain([flow.policies, flow.default_band]);
        if scheduler.value != Scheduler::Flow {
            if let Some(at) = &flow.place {
                self.warn(at, WITHOUT_FLOW);
            }
        } else if let Some(at) = &flow.weights_at
            && !policies.any(|policies| policies.fairness == Some(FairnessSettings::Weighted))
        {
            self.warn(at, "has no effect without fairness: weighted");
        }
    }

    pub(super) fn model_without_effect(&mut self, model: &ModelFile) {
        if let Some(at) = model.send_loading_state.as_ref().filter(|at| at.value) {
            self.warn(at, "has no effect yet: waiting clients are not told how far the load is");
        }
        if let Some(at) = &model.detector
            && self.file.routing.scheduler.value != Scheduler::Flow
        {
            self.warn(&at.place, WITHOUT_FLOW);
        }
        if model.ignore_websockets.value {
            let at = &model.ignore_websockets;
            self.warn(at, "has no effect yet: websockets load the model and keep it loaded");
        }
        if let Some(at) = model.timeouts.keepalive.as_ref().filter(|at| at.value != Duration::from_secs(30)) {
            self.warn(at, "has no effect: the system decides when to probe a connection");
        }
    }
}
