//! `fifo`: as many at once as the replicas take, by the model's priority plus the caller's, then arrival.

use super::scored::Order;
use crate::FifoSettings;

pub(super) fn order(settings: &FifoSettings) -> Order {
    Order { micros_per_point: None, affinity: 0, slots: None, model_priority: settings.model_priority.clone() }
}
