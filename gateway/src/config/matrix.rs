//! The matrix's language: `a & b` is both, `a | b` is either, `+set` is another set. An expression stands for a list
//! of sets of models.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter::Peekable,
    str::CharIndices,
};

/// Sets that all expressions together may stand for, and models in them: alternatives multiply.
const MAX_SETS: usize = 4096;
const MAX_MEMBERS: usize = 65536;

const GRAMMAR: &str = "write names with & or | between them, ( ) around alternatives, and +SET for another set";

/// What is wrong with an expression, and the text at which it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) message: String,
    pub(super) cure: &'static str,
    pub(super) at: String,
    /// The name of a model that does not exist, for suggestions.
    pub(super) unknown: Option<String>,
}

impl Fault {
    fn new(message: impl Into<String>, at: &str, cure: &'static str) -> Self {
        Self { message: message.into(), cure, at: at.to_owned(), unknown: None }
    }
}

type Sets = Vec<BTreeSet<String>>;

/// Writes expressions out as sets.
pub(super) struct Expander<'a> {
    /// The expressions by name.
    expressions: BTreeMap<&'a str, &'a str>,
    /// What a name stands for: a model's id.
    model: &'a dyn Fn(&str) -> Option<String>,
    done: HashMap<&'a str, Sets>,
    within: Vec<&'a str>,
    sets: usize,
    members: usize,
}

impl<'a> Expander<'a> {
    pub(super) fn new(
        expressions: impl IntoIterator<Item = (&'a str, &'a str)>,
        model: &'a dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let expressions = expressions.into_iter().collect();
        Self { expressions, model, done: HashMap::new(), within: Vec::new(), sets: 0, members: 0 }
    }

    /// The sets of one of the expressions.
    pub(super) fn expand(&mut self, name: &'a str) -> Result<Sets, Fault> {
        if let Some(sets) = self.done.get(name) {
            return Ok(sets.clone());
        }
        let reference = format!("+{name}");
        let Some(expression) = self.expressions.get(name).copied() else {
            return Err(Fault::new(format!("there is no set `{name}`"), &reference, "name one that is under `sets:`"));
        };
        if self.within.contains(&name) {
            let circle = self.within.join(" → ");
            return Err(Fault::new(
                format!("the set stands for itself: {circle} → {name}"),
                &reference,
                "write one of them out",
            ));
        }
        self.within.push(name);
        let mut input = Input { text: expression, chars: expression.char_indices().peekable() };
        let sets = self.either(&mut input).and_then(|sets| match input.next() {
            None => Ok(sets),
            Some(token) => Err(Fault::new(format!("`{token}` is not expected here"), token, GRAMMAR)),
        });
        self.within.pop();
        let sets = sets?;
        self.done.insert(name, sets.clone());
        Ok(sets)
    }

    fn either(&mut self, input: &mut Input<'a>) -> Result<Sets, Fault> {
        let mut sets = self.both(input)?;
        while input.take("|") {
            let more = self.both(input)?;
            for set in more {
                if !sets.contains(&set) {
                    sets.push(set);
                }
            }
            self.count(&sets, input)?;
        }
        Ok(sets)
    }

    fn both(&mut self, input: &mut Input<'a>) -> Result<Sets, Fault> {
        let mut sets = self.operand(input)?;
        while input.take("&") {
            let others = self.operand(input)?;
            if sets.len().saturating_mul(others.len()) > MAX_SETS {
                return Err(too_many(input.text));
            }
            let mut product = Sets::new();
            for left in &sets {
                for right in &others {
                    let union = left | right;
                    if !product.contains(&union) {
                        product.push(union);
                    }
                }
            }
            sets = product;
            self.count(&sets, input)?;
        }
        Ok(sets)
    }

    fn operand(&mut self, input: &mut Input<'a>) -> Result<Sets, Fault> {
        match input.next() {
            Some("(") => {
                let sets = self.either(input)?;
                if input.take(")") { Ok(sets) } else { Err(Fault::new("a parenthesis is not closed", "(", GRAMMAR)) }
            }
            Some(operator @ ("&" | "|" | ")" | "+")) => {
                Err(Fault::new(format!("a name is missing before `{operator}`"), operator, GRAMMAR))
            }
            Some(token) => match token.strip_prefix('+') {
                Some(name) => self.expand(name),
                None => match (self.model)(token) {
                    Some(model) => Ok(vec![BTreeSet::from([model])]),
                    None => Err(Fault {
                        cure: "",
                        message: format!("`{token}` is neither in vars nor a model"),
                        at: token.to_owned(),
                        unknown: Some(token.to_owned()),
                    }),
                },
            },
            None if input.text.trim().is_empty() => Err(Fault::new("the expression is empty", "", GRAMMAR)),
            None => Err(Fault::new("a name is missing at the end", input.text, GRAMMAR)),
        }
    }

    /// Every list that is made on the way counts, so that the work is bounded too.
    fn count(&mut self, sets: &Sets, input: &Input<'_>) -> Result<(), Fault> {
        self.sets += sets.len();
        self.members += sets.iter().map(BTreeSet::len).sum::<usize>();
        if self.sets > MAX_SETS || self.members > MAX_MEMBERS {
            return Err(too_many(input.text));
        }
        Ok(())
    }
}

fn too_many(text: &str) -> Fault {
    Fault::new(format!("the expressions stand for more than {MAX_SETS} sets"), text, "use fewer alternatives")
}

struct Input<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
}

impl<'a> Input<'a> {
    /// The next token: an operator, or a name, which may begin with `+`.
    fn next(&mut self) -> Option<&'a str> {
        let is_operator = |c: char| matches!(c, '&' | '|' | '(' | ')');
        while self.chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        let (start, first) = self.chars.next()?;
        if !is_operator(first) {
            while self.chars.next_if(|(_, c)| !is_operator(*c) && !c.is_whitespace()).is_some() {}
        }
        let end = self.chars.peek().map_or(self.text.len(), |(at, _)| *at);
        Some(&self.text[start..end])
    }

    /// Takes the next token if it is this operator.
    fn take(&mut self, operator: &str) -> bool {
        let before = self.chars.clone();
        let found = self.next() == Some(operator);
        if !found {
            self.chars = before;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(expressions: &[(&str, &str)], name: &str) -> Result<Vec<String>, String> {
        let model = |name: &str| (name.len() == 1 || name.contains('-')).then(|| name.to_owned());
        let mut expander = Expander::new(expressions.iter().copied(), &model);
        let sets = expander.expand(name).map_err(|fault| format!("{} at {}", fault.message, fault.at))?;
        Ok(sets.into_iter().map(|set| set.into_iter().collect::<Vec<_>>().join(" ")).collect())
    }

    #[test]
    fn and_binds_more_closely_than_or() {
        let sets = [("s", "a & b | c&d|(a|b)& (c | d-e)")];
        assert_eq!(expand(&sets, "s").unwrap(), ["a b", "c d", "a c", "a d-e", "b c", "b d-e"]);
    }

    #[test]
    fn a_set_can_stand_in_another() {
        let sets = [("all", "+some & v"), ("some", "g | q"), ("twice", "+some & +some")];
        assert_eq!(expand(&sets, "all").unwrap(), ["g v", "q v"]);
        assert_eq!(expand(&sets, "twice").unwrap(), ["g", "g q", "q"], "no set comes twice");
    }

    #[test]
    fn faults_name_their_place() {
        let fault = |text| expand(&[("s", text), ("t", "+s")], "s").unwrap_err();
        assert_eq!(fault("a &"), "a name is missing at the end at a &");
        assert_eq!(fault("a | & b"), "a name is missing before `&` at &");
        assert_eq!(fault("(a | b"), "a parenthesis is not closed at (");
        assert_eq!(fault("a b"), "`b` is not expected here at b");
        assert_eq!(fault("a & xx"), "`xx` is neither in vars nor a model at xx");
        assert_eq!(fault("a & +zz"), "there is no set `zz` at +zz");
        assert_eq!(fault("a & +t"), "the set stands for itself: s → t → s at +s");
    }

    #[test]
    fn expansion_is_bounded() {
        let ten = "(0|1|2|3|4|5|6|7|8|9)";
        let billions = [ten; 10].join(" & ");
        assert!(expand(&[("s", &billions)], "s").unwrap_err().starts_with("the expressions stand for more than"));
    }
}
