//! The table against the policy as a library.

use std::collections::BTreeMap;

use switchyard_policy::{Decision, Policy, PolicySettings, RequestView};
use switchyard_policy_conformance::{Case, NOW_UNIX, Outcome, Table};

fn outcome(policy: &Policy, case: &Case) -> Outcome {
    let (path, headers) = (case.path(), case.headers());
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect();
    let request = RequestView { method: case.method().as_bytes(), path: &path, headers: &headers };
    match policy.decide(&request, NOW_UNIX) {
        Decision::Deny(denial) => Outcome::Denied { status: denial.status, body: denial.body.into_bytes() },
        Decision::Allow(allowed) => {
            let removed = |name: &[u8]| allowed.remove.iter().any(|gone| gone.as_bytes().eq_ignore_ascii_case(name));
            let kept = headers.iter().filter(|(name, _)| !removed(name));
            let kept = kept.map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.to_vec()));
            let set = allowed.set.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()));
            Outcome::Passed(kept.chain(set).collect())
        }
    }
}

#[test]
fn every_case_is_decided_as_the_table_says() {
    let table = Table::load();
    assert!(table.cases.len() >= 150, "the table has only {} cases", table.cases.len());
    let policies: BTreeMap<_, _> = table
        .settings
        .iter()
        .map(|(name, json)| {
            let settings = PolicySettings::from_json(json.to_string().as_bytes()).expect("readable settings");
            (name.as_str(), Policy::new(settings).unwrap_or_else(|problems| panic!("{name}: {problems:#?}")))
        })
        .collect();
    let wrong: Vec<_> = table
        .cases
        .iter()
        .filter_map(|case| {
            let outcome = outcome(&policies[case.settings_name()], case);
            case.check(&outcome).err().map(|difference| format!("{}: {difference}", case.name))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), table.cases.len(), wrong.join("\n"));
}
