//! Every name that a request can ask for, and whose it is.

use std::collections::HashMap;

use super::Check;
use crate::config::{
    problem::{Sink, suggestion},
    reader::At,
};

/// Every name that a request can ask for, and whose it is.
#[derive(Default)]
pub(super) struct Names(HashMap<String, Owner>);

#[derive(Clone, PartialEq)]
enum Owner {
    /// A model's id.
    Model(String),
    /// A selector, which is accepted but does nothing.
    Selector,
    /// A model that several peers have.
    Ambiguous,
}

impl Names {
    /// The id of the model that a name stands for.
    pub(super) fn id(&self, name: &str) -> Option<&str> {
        match self.0.get(name)? {
            Owner::Model(id) => Some(id),
            Owner::Selector | Owner::Ambiguous => None,
        }
    }

    pub(super) fn is_selector(&self, name: &str) -> bool {
        self.0.get(name) == Some(&Owner::Selector)
    }

    /// The id of the model that a name stands for; it is a problem if there is none.
    pub(super) fn expect(&self, name: &At<String>, sink: &Sink) -> Option<&str> {
        let (message, cure) = match self.0.get(name.trim()) {
            Some(Owner::Model(id)) => return Some(id),
            Some(Owner::Selector) => (format!("`{}` is a selector", name.value), "name a model".to_owned()),
            Some(Owner::Ambiguous) => {
                (format!("several peers have a model `{}`", name.value), format!("write PEER/{}", name.value))
            }
            None => (format!("there is no model `{}`", name.value), self.suggest(name)),
        };
        name.problem(sink, message, cure);
        None
    }

    /// As [`Names::expect`], where an alias will not do.
    pub(super) fn expect_id(&self, name: &At<String>, sink: &Sink) {
        if let Some(id) = self.expect(name, sink)
            && id != name.value
        {
            let message = format!("`{}` is another name of the model `{id}`", name.value);
            name.problem(sink, message, format!("write `{id}`"));
        }
    }

    /// The cure for a name that nothing has.
    pub(super) fn suggest(&self, name: &str) -> String {
        let models = self.0.iter().filter(|(_, owner)| matches!(owner, Owner::Model(_)));
        let mut names: Vec<&str> = models.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        suggestion(name, names)
    }
}

impl Check<'_> {
    /// Collects the names and reports those that two want.
    pub(super) fn names(&self) -> Names {
        let mut names = Names::default();
        for (id, _) in &self.file.models {
            if id.trim().is_empty() {
                id.problem(self.sink, "a model's id is empty", "give it a name");
            }
            names.0.insert(id.value.clone(), Owner::Model(id.value.clone()));
        }
        for (id, model) in &self.file.models {
            for (at, alias) in model.aliases.iter().enumerate() {
                if model.aliases[..at].iter().any(|earlier| earlier.value == alias.value) {
                    alias.problem(self.sink, format!("the alias `{}` is here twice", alias.value), "remove one");
                } else {
                    self.alias(&mut names, alias, id);
                }
            }
            let by_id = &model.filters.set_params_by_id;
            for (at, (name, _)) in by_id.iter().enumerate() {
                if by_id[..at].iter().any(|(earlier, _)| earlier.value == name.value) {
                    name.problem(self.sink, "with macros put in, this key is here twice", "merge the two");
                } else {
                    self.alias(&mut names, name, id);
                }
            }
        }
        let mut unqualified: HashMap<&str, Owner> = HashMap::new();
        for (peer, settings) in &self.file.peers {
            for (at, model) in settings.models.iter().enumerate() {
                if settings.models[..at].iter().any(|earlier| earlier.value == model.value) {
                    continue;
                }
                let id = format!("{}/{}", peer.value, model.value);
                if names.0.insert(id.clone(), Owner::Model(id.clone())).is_some() {
                    let message = format!("the name `{id}`, by which this model is asked for, is taken");
                    model.problem(self.sink, message, "rename the peer, or the model or alias of that name");
                }
                let owner = unqualified.entry(&model.value).or_insert_with(|| Owner::Model(id.clone()));
                if *owner != Owner::Model(id) {
                    *owner = Owner::Ambiguous;
                }
            }
        }
        for (name, _) in &self.file.selectors {
            if names.0.contains_key(&name.value) {
                name.problem(self.sink, "a model or alias has the same name", "rename the selector");
            } else {
                names.0.insert(name.value.clone(), Owner::Selector);
            }
        }
        for (name, owner) in unqualified {
            names.0.entry(name.to_owned()).or_insert(owner);
        }
        names
    }

    fn alias(&self, names: &mut Names, alias: &At<String>, id: &At<String>) {
        match names.0.get(&alias.value) {
            Some(Owner::Model(owner)) if *owner == id.value => {}
            Some(Owner::Model(owner)) if *owner == alias.value => {
                let message = format!("`{owner}` is the id of another model");
                alias.problem(self.sink, message, "choose another alias");
            }
            Some(Owner::Model(owner)) => {
                let message = format!("`{}` already means the model `{owner}`", alias.value);
                alias.problem(self.sink, message, "let it mean one model");
            }
            _ => {
                names.0.insert(alias.value.clone(), Owner::Model(id.value.clone()));
            }
        }
    }
}
