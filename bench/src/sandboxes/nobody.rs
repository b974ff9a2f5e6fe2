//! The control plane of the sandboxes that the bench makes by itself, and what it gives them.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use async_trait::async_trait;
use domain::SandboxId;
use futures::StreamExt;
use link::server::{Carrier, FileSource, LinkHandler, Outfit};
use protocol::{
    Content, Offered, Refusal, RefusalCode, SignedUrl, SyncAnswer, SyncCall, SyncRequest, ToControl, TurnReply,
    TurnRequest,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use secret::Secret;

/// A control plane that grants nothing, and keeps files as a default installation does, so that the process that watches the
/// workspace stays. What comes is counted and thrown away.
#[derive(Default)]
pub(crate) struct Nobody {
    recorded: AtomicUsize,
}

impl Nobody {
    /// Files that were recorded.
    pub(crate) fn recorded(&self) -> usize {
        self.recorded.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl LinkHandler for Nobody {
    async fn invoke_llm(&self, _: SandboxId, _: &Secret, _: TurnRequest) -> Result<TurnReply, Refusal> {
        Err(denied())
    }

    async fn connect(&self, _: SandboxId, _: &Secret, _: &str, _: u16) -> Result<Box<dyn Carrier>, Refusal> {
        Err(denied())
    }

    async fn resolve(&self, _: SandboxId, _: &Secret, _: &str) -> Result<Option<u32>, Refusal> {
        Err(denied())
    }

    async fn sync(&self, _: SandboxId, _: &Secret, call: SyncCall) -> Result<SyncAnswer, Refusal> {
        Ok(match call.request {
            SyncRequest::Begin => SyncAnswer::Begun { missing: 0 },
            SyncRequest::Known { .. } => SyncAnswer::Known { files: Vec::new() },
            SyncRequest::Missing { .. } => SyncAnswer::Page {
                files: Vec::new(),
                next: None,
            },
            SyncRequest::Offer { contents } => SyncAnswer::Offered {
                offers: contents.iter().map(wanted).collect(),
            },
            SyncRequest::Fetch { contents } => SyncAnswer::Fetch {
                urls: vec![SignedUrl::default(); contents.len()],
            },
            SyncRequest::Record { files, .. } => {
                self.recorded.fetch_add(files.len(), Ordering::SeqCst);
                noted()
            }
            SyncRequest::Placed { .. } | SyncRequest::NoRoom { .. } | SyncRequest::CaughtUp => noted(),
        })
    }

    async fn keep_object(
        &self,
        _: SandboxId,
        _: &Secret,
        _: &str,
        _: Option<u64>,
        mut body: FileSource,
    ) -> Result<(), Refusal> {
        while let Some(piece) = body.next().await {
            piece.map_err(|_| Refusal::new(RefusalCode::Unavailable, "the content is not whole"))?;
        }
        Ok(())
    }

    async fn event(&self, _: SandboxId, _: ToControl) {}
}

/// What a default installation gives to a session that is new: the certificate of its authority, and no file.
pub(crate) fn outfit() -> anyhow::Result<Outfit> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, "Belljar bench");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let key = KeyPair::generate().context("no key for an authority could be made")?;
    let authority = parameters.self_signed(&key).context("no authority could be made")?;
    Ok(Outfit {
        authorities: authority.pem(),
        filled: true,
        ..Outfit::default()
    })
}

fn wanted(content: &Content) -> Offered {
    Offered::Upload {
        url: format!("/v1/objects/{}", content.sha256).into(),
    }
}

fn noted() -> SyncAnswer {
    SyncAnswer::Recorded {
        refused: Vec::new(),
        full: Vec::new(),
    }
}

fn denied() -> Refusal {
    Refusal::new(RefusalCode::Denied, "nothing is to be had here")
}
