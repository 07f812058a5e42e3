//! Every name that a request can ask for, and whose it is.

use std::{collections::HashMap, fmt};

use super::Check;
use crate::config::{problem::suggestion, reader::At};

/// Why a name is not what it should be, and what would be right.
pub(super) struct Unknown {
    pub(super) message: String,
    pub(super) cure: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.cure)
    }
}

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

    /// The id of the model that a name stands for.
    pub(super) fn lookup(&self, name: &str) -> Result<&str, Unknown> {
        let (message, cure) = match self.0.get(name) {
            Some(Owner::Model(id)) => return Ok(id),
            Some(Owner::Selector) => (format!("`{name}` is a selector"), "name a model".to_owned()),
            Some(Owner::Ambiguous) => (format!("several peers have a model `{name}`"), format!("write PEER/{name}")),
            None => (format!("there is no model `{name}`"), self.suggest(name)),
        };
        Err(Unknown { message, cure })
    }

    /// Whether a name is the id of a model: an alias will not do.
    pub(super) fn is_id(&self, name: &str) -> Result<(), Unknown> {
        match self.lookup(name)? {
            id if id == name => Ok(()),
            id => Err(Unknown {
                message: format!("`{name}` is another name of the model `{id}`"),
                cure: format!("write `{id}`"),
            }),
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
    pub(super) fn names(&mut self) -> Names {
        let file = self.file;
        let mut names = Names::default();
        for (id, _) in &file.models {
            if id.trim().is_empty() {
                id.problem(self.sink, "a model's id is empty", "give it a name");
            }
            names.0.insert(id.value.clone(), Owner::Model(id.value.clone()));
        }
        for (id, model) in &file.models {
            for (at, alias) in model.aliases.iter().enumerate() {
                if alias.value != id.value && names.0.get(&alias.value) == Some(&Owner::Model(alias.value.clone())) {
                    self.warn(alias, format!("is ignored: `{}` is the id of another model", alias.value));
                } else if model.aliases[..at].iter().any(|earlier| earlier.value == alias.value) {
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
        for (peer, settings) in &file.peers {
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
        for (name, _) in &file.selectors {
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
