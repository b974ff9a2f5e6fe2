//! What stands beside the answer to a question about rights.

use policy::Question;
use store::Asker;

use crate::{Control, ControlError};

impl Control {
    /// What in a question names nothing that is here, in words: the answer about rights holds all the same, for whoever or whatever
    /// will have that name. To be asked by whom [`Control::explain`] answered.
    ///
    /// # Errors
    /// The store failed.
    pub async fn notices(&self, person: &str, question: &Question) -> Result<Vec<String>, ControlError> {
        let mut notices = Vec::new();
        let users = self.0.store.users(Asker::System, false).await?;
        if !users.iter().any(|user| user.name == person) {
            notices.push(format!(
                "nobody here is called {person:?}: what everybody may do was counted, and what roles say of that name"
            ));
        }
        if let Question::Method { service, method } = question {
            let services = self.0.services.as_ref();
            if !services.is_some_and(|services| services.has(service, method)) {
                notices.push(format!(
                    "no service here has a method {service}.{method} that can be called"
                ));
            }
        }
        notices.extend(self.unnamed(question));
        Ok(notices)
    }
}
