//! `global-strict`: tenants do not count.

use super::{Share, Tag, Tokens};
use crate::TenantId;

#[derive(Debug)]
pub(super) struct GlobalStrict;

impl Share for GlobalStrict {
    fn payer(&self, _tenant: TenantId) -> TenantId {
        TenantId::default()
    }

    fn cost(&self, _tokens: Tokens, _weight: u32) -> Tag {
        0
    }

    fn window(&self) -> Option<u32> {
        None
    }

    fn say(&self, _way: i64) -> f64 {
        0.0
    }
}
