//! `serial`: one job at a time, by priority + swap affinity + aging.

use std::num::NonZeroU64;

use super::scored::Order;
use crate::SerialSettings;

pub(super) fn order(settings: &SerialSettings) -> Order {
    Order {
        micros_per_point: NonZeroU64::new(u64::from(settings.aging_divisor) * 1_000_000),
        affinity: settings.swap_affinity_bonus,
        slots: Some(settings.slots.max(1)),
        model_priority: Default::default(),
    }
}
