//! Values that are used together, and what takes them out of answers: shared by the bindings that use the same ones.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use crate::binding::{Auth, Binding};
use crate::vault::Credential;
use crate::{Redactor, forms};

/// Values that are used together.
pub(crate) struct Secrets {
    values: Vec<Arc<SecretString>>,
    prefix: &'static str,
    /// Made when the first answer comes.
    redactor: OnceLock<Redactor>,
}

/// All that a vault uses, by the names of the credentials and by what is before a value in a header.
#[derive(Default)]
pub(crate) struct Shared(BTreeMap<(Vec<String>, &'static str), Arc<Secrets>>);

impl Shared {
    /// What a binding uses; its credentials exist.
    pub(crate) fn of(&mut self, binding: &Binding, credentials: &BTreeMap<String, Credential>) -> Arc<Secrets> {
        let mut names: Vec<String> = binding.credentials().map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        let prefix = binding.auth.prefix();
        let values = names.iter().filter_map(|name| credentials.get(name)).map(|found| found.value.clone()).collect();
        let made = || Arc::new(Secrets { values, prefix, redactor: OnceLock::new() });
        self.0.entry((names, prefix)).or_insert_with(made).clone()
    }

    /// The length of all values, as often as they are used with others.
    pub(crate) fn bytes(&self) -> usize {
        let values = self.0.values().flat_map(|secrets| &secrets.values);
        values.map(|value| value.expose_secret().len()).sum()
    }
}

impl Secrets {
    pub(crate) fn redactor(&self) -> &Redactor {
        self.redactor.get_or_init(|| {
            let values = self.values.iter().map(|value| value.expose_secret());
            Redactor::new(values.flat_map(|value| {
                let mut forms = forms::of_value(value);
                forms.push(Zeroizing::new([self.prefix.as_bytes(), value.as_bytes()].concat()));
                if self.prefix == Auth::BASIC {
                    forms.extend(forms::of_login(value));
                }
                forms
            }))
        })
    }
}
