//! Reads a TOML table key by key, and notes all faults.
//!
//! Every reading function returns `None` for an absent key, and a stand-in for an unreadable value: rules about the
//! key's presence then do not report it a second time.

use super::source::Source;
use crate::suggest::did_you_mean;
use crate::{Error, check::Problem, error::ErrorList};
use std::{cell::RefCell, fmt::Display, ops::Range, ops::RangeInclusive, str::FromStr};
use toml_edit::{Item, TableLike, Value};

/// Collects the errors of one text.
pub(super) struct Reader<'a> {
    source: &'a Source<'a>,
    errors: RefCell<ErrorList>,
}

/// One table of the text.
pub(super) struct Table<'a> {
    reader: &'a Reader<'a>,
    /// The table's key, such as `vnic.plc1.tx`.
    path: String,
    /// The place of that key.
    pub key_span: Range<usize>,
    items: &'a dyn TableLike,
}

impl<'a> Reader<'a> {
    pub(super) fn new(source: &'a Source<'a>) -> Self {
        Self { source, errors: RefCell::default() }
    }

    /// Returns the noted errors, in the order of the text.
    pub(super) fn into_errors(self) -> Vec<Error> {
        self.errors.into_inner().into_errors()
    }
}

impl<'a> Table<'a> {
    pub(super) fn root(reader: &'a Reader<'a>, items: &'a toml_edit::Table) -> Self {
        Self { reader, path: String::new(), key_span: 0..0, items }
    }

    fn path_of(&self, key: &str) -> String {
        match (self.path.as_str(), key) {
            (path, "") => path.into(),
            ("", key) => key.into(),
            (path, key) => format!("{path}.{key}"),
        }
    }

    /// Returns the place of the value of `key`, a dotted path from this table on, or of its nearest parent.
    fn span_of(&self, key: &str) -> Range<usize> {
        let mut items = self.items;
        let mut span = self.key_span.clone();
        let mut rest = key;
        // A name may have dots, too: the longest key that the path begins with.
        while let Some((part, (name, item))) =
            prefixes(rest).find_map(|part| Some((part, items.get_key_value(part)?)))
        {
            rest = rest[part.len()..].trim_start_matches('.');
            let value = item.as_value().and_then(Value::span);
            span = value.or_else(|| name.span()).unwrap_or(span);
            let Some(inner) = item.as_table_like() else {
                break;
            };
            items = inner;
        }
        span
    }

    /// Returns the count of faults of the text so far.
    pub(super) fn faults(&self) -> usize {
        self.reader.errors.borrow().count()
    }

    /// Notes that the value of `key` is wrong, or this table if `key` is empty.
    pub(super) fn report(&self, key: &str, message: impl Display) {
        self.report_at(self.span_of(key), key, message);
    }

    fn report_at(&self, span: Range<usize>, key: &str, message: impl Display) {
        let error = || self.reader.source.error(span, &self.path_of(key), message.to_string());
        self.reader.errors.borrow_mut().note(error);
    }

    /// Notes the rules that the value read from this table breaks.
    pub(super) fn report_problems(&self, checked: Result<(), Vec<Problem>>) {
        for Problem { key, message } in checked.err().into_iter().flatten() {
            self.report(&key, message);
        }
    }

    pub(super) fn check_known_keys(&self, keys: &[&str]) {
        for (key, _) in self.items.iter().filter(|(key, _)| !keys.contains(key)) {
            let span = self.items.key(key).and_then(|k| k.span()).unwrap_or(self.key_span.clone());
            let hint = match did_you_mean(key, keys.iter().copied()) {
                none if none.is_empty() => format!("; known keys: {}", keys.join(", ")),
                hint => hint,
            };
            self.report_at(span, key, format!("unknown key{hint}"));
        }
    }

    /// Notes that a required `key` is missing.
    pub(super) fn report_missing(&self, key: &str, example: &str) {
        self.report_at(self.key_span.clone(), key, format!("missing; write {example}"));
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.items.contains_key(key)
    }

    /// Returns the table at `key`, inline or not.
    pub(super) fn table(&self, key: &str) -> Option<Table<'a>> {
        self.table_or(key, "a table")
    }

    /// As [`Table::table`], for a key that takes other values too: `expected` names all.
    pub(super) fn table_or(&self, key: &str, expected: &str) -> Option<Table<'a>> {
        let (name, item) = self.items.get_key_value(key)?;
        let Some(items) = item.as_table_like() else {
            self.report(key, format!("expected {expected}, found {}", item.type_name()));
            return None;
        };
        let key_span = name.span().unwrap_or(self.key_span.clone());
        Some(Table { reader: self.reader, path: self.path_of(key), key_span, items })
    }

    pub(super) fn tables(&self) -> Vec<(String, Table<'a>)> {
        let keys = self.items.iter().map(|(key, _)| key.to_owned());
        keys.filter_map(|key| self.table(&key).map(|table| (key, table))).collect()
    }

    pub(super) fn text<T: FromStr<Err: Display>>(&self, key: &str, expected: &str, fallback: T) -> Option<T> {
        let item = self.items.get(key)?;
        Some(self.convert(key, item.as_value(), expected).unwrap_or(fallback))
    }

    /// As [`Table::text`], for a key with two spellings.
    pub(super) fn text_of_either<T: FromStr<Err: Display>>(
        &self,
        key: &str,
        alias: &str,
        expected: &str,
        fallback: T,
    ) -> Option<T> {
        if self.has(key) && self.has(alias) {
            self.report(alias, format!("{key} is given too, and means the same; keep one of them"));
        }
        let key = if self.has(key) { key } else { alias };
        self.text(key, expected, fallback)
    }

    pub(super) fn integer<T>(&self, key: &str, range: &RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        let item = self.items.get(key)?;
        Some(self.number(key, item.as_value(), range).unwrap_or(*range.start()))
    }

    pub(super) fn boolean(&self, key: &str) -> Option<bool> {
        let item = self.items.get(key)?;
        if item.as_bool().is_none() {
            self.report(key, format!("expected true or false, found {}", item.type_name()));
        }
        Some(item.as_bool().unwrap_or_default())
    }

    pub(super) fn texts<T: FromStr<Err: Display>>(&self, key: &str, expected: &str) -> Vec<T> {
        self.list(key).iter().filter_map(|value| self.convert(key, Some(value), expected)).collect()
    }

    pub(super) fn integers<T>(&self, key: &str, range: &RangeInclusive<T>) -> Vec<T>
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        self.list(key).iter().filter_map(|value| self.number(key, Some(value), range)).collect()
    }

    pub(super) fn as_str(&self, key: &str) -> Option<&'a str> {
        self.items.get(key).and_then(Item::as_str)
    }

    /// Returns whether `key` is a list without a value.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        self.items.get(key).and_then(Item::as_array).is_some_and(|array| array.is_empty())
    }

    fn list(&self, key: &str) -> Vec<&'a Value> {
        match self.items.get(key) {
            None => Vec::new(),
            Some(item) => match item.as_array() {
                Some(array) => array.iter().collect(),
                None => {
                    self.report(key, format!("expected a list, [\"…\", …], found {}", item.type_name()));
                    Vec::new()
                }
            },
        }
    }

    fn convert<T: FromStr<Err: Display>>(
        &self,
        key: &str,
        value: Option<&Value>,
        expected: &str,
    ) -> Option<T> {
        let span = value.and_then(Value::span).unwrap_or_else(|| self.span_of(key));
        let parsed = match value {
            Some(Value::String(text)) => text.value().parse().map_err(|error: T::Err| error.to_string()),
            // A bare number lacks its unit; the quantity's own parser says so best.
            Some(Value::Integer(_) | Value::Float(_)) => {
                match self.reader.source.text[span.clone()].parse::<T>() {
                    Err(error) => Err(error.to_string()),
                    Ok(_) => Err(format!("expected {expected}, found a bare number; put it in quotes")),
                }
            }
            other => Err(format!("expected {expected}, found {}", other.map_or("table", Value::type_name))),
        };
        parsed.map_err(|message| self.report_at(span, key, message)).ok()
    }

    fn number<T>(&self, key: &str, value: Option<&Value>, range: &RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        let span = value.and_then(Value::span).unwrap_or_else(|| self.span_of(key));
        let (min, max) = (range.start(), range.end());
        let Some(Value::Integer(number)) = value else {
            let found = value.map_or("table", Value::type_name);
            self.report_at(span, key, format!("expected a whole number, {min} to {max}, found {found}"));
            return None;
        };
        match T::try_from(*number.value()) {
            Ok(number) if range.contains(&number) => Some(number),
            _ => {
                self.report_at(span, key, format!("{} is out of range; {min} to {max}", number.value()));
                None
            }
        }
    }
}

/// Returns a dotted path, and the paths that it begins with, the longest first.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    std::iter::once(path)
        .chain(path.rmatch_indices('.').map(|(at, _)| &path[..at]))
        .filter(|path| !path.is_empty())
}
