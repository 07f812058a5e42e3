//! The candidates, one for each model, and the best of them.

use std::collections::BTreeSet;

use super::{ModelTraits, Standing};
use crate::{fleet::ModelIx, queue::Tournament};

/// Keeps the candidate with the greatest key, be its model ready or not. Unloaded models are kept by class, so that a
/// whole class can be set aside at once.
#[derive(Debug)]
pub(super) struct Board<K> {
    ready: Tournament<K>,
    /// Unloaded models by class, and the best of each class. The last class is for models that conflict with nobody.
    unloaded: Vec<BTreeSet<(K, ModelIx)>>,
    unloaded_count: usize,
    classes: Tournament<K>,
    is_aside: Vec<bool>,
    /// The classes that are set aside, to be brought back at the end of the round.
    aside: Vec<usize>,
    /// A model's class, and the key under which it stands among the unloaded ones.
    places: Vec<(usize, Option<K>)>,
}

impl<K: Ord + Copy> Board<K> {
    /// A board with nobody on it. `absent` has to be less than any key in use.
    pub(super) fn new(models: &[ModelTraits], absent: K) -> Self {
        let classes = models.iter().filter_map(|model| model.class).max().map_or(1, |class| class + 2);
        Self {
            ready: Tournament::new(models.len(), absent),
            unloaded: vec![BTreeSet::new(); classes],
            unloaded_count: 0,
            classes: Tournament::new(classes, absent),
            is_aside: vec![false; classes],
            aside: Vec::new(),
            places: models.iter().map(|model| (model.class.unwrap_or(classes - 1), None)).collect(),
        }
    }

    /// Sets a model's candidate; one that is blocked is none.
    pub(super) fn set(&mut self, model: ModelIx, candidate: Option<(Standing, K)>) {
        let (ready, unloaded) = match candidate {
            Some((Standing::Ready, key)) => (Some(key), None),
            Some((Standing::Unloaded, key)) => (None, Some(key)),
            Some((Standing::Blocked, _)) | None => (None, None),
        };
        self.ready.set(model, ready);
        if unloaded.is_none() && self.unloaded_count == 0 {
            return;
        }
        let (class, before) = self.places[model];
        if before != unloaded {
            if let Some(old) = before {
                self.unloaded[class].remove(&(old, model));
            }
            self.unloaded[class].extend(unloaded.map(|new| (new, model)));
            self.unloaded_count = self.unloaded_count + usize::from(unloaded.is_some()) - usize::from(before.is_some());
            self.places[model].1 = unloaded;
            self.update_class(class);
        }
    }

    pub(super) fn best(&self) -> Option<(&K, ModelIx, Standing)> {
        let ready = self.ready.best().map(|(model, key)| (key, model, Standing::Ready));
        let unloaded = self.classes.best().and_then(|(class, _)| self.unloaded[class].last());
        let unloaded = unloaded.map(|(key, model)| (key, *model, Standing::Unloaded));
        match (ready, unloaded) {
            (Some(ready), Some(unloaded)) if unloaded.0 >= ready.0 => Some(unloaded),
            (ready, unloaded) => ready.or(unloaded),
        }
    }

    /// The key of the best whose model is not ready.
    pub(super) fn best_unloaded(&self) -> Option<&K> {
        self.classes.best().map(|(_, key)| key)
    }

    /// No unloaded model of the class is a candidate until [`end_round`](Self::end_round).
    pub(super) fn set_aside_class(&mut self, class: usize) {
        self.aside.push(class);
        self.is_aside[class] = true;
        self.update_class(class);
    }

    pub(super) fn end_round(&mut self) {
        while let Some(class) = self.aside.pop() {
            self.is_aside[class] = false;
            self.update_class(class);
        }
    }

    fn update_class(&mut self, class: usize) {
        let best = self.unloaded[class].last().map(|&(key, _)| key).filter(|_| !self.is_aside[class]);
        self.classes.set(class, best);
    }
}
