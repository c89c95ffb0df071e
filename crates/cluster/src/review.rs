//! The question of an API server and its answer: an `AdmissionReview` of `admission.k8s.io/v1`. The answer is always yes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::pod::{self, Pod};

/// The version of reviews that is spoken.
const VERSION: &str = "admission.k8s.io/v1";
/// A number of a review is a UUID, of 36 characters.
const UID_CHARS: usize = 128;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: String,
    kind: String,
}

#[derive(Debug, Deserialize)]
struct Review {
    request: Request,
}

#[derive(Debug, Deserialize)]
struct Request {
    uid: String,
    /// None where something is deleted.
    object: Option<Pod>,
}

/// The answer to a review, or what is wrong with it, for a person.
pub(crate) fn answer(body: &[u8]) -> Result<Value, String> {
    let wrong = |error: serde_json::Error| {
        format!(
            "this is no AdmissionReview of a pod: {error} (webhooks of Kubernetes speak to this address)"
        )
    };
    let head: Head = serde_json::from_slice(body).map_err(wrong)?;
    if head.api_version != VERSION || head.kind != "AdmissionReview" {
        return Err(format!(
            "only an AdmissionReview of {VERSION} is understood: let admissionReviewVersions of the MutatingWebhookConfiguration be [v1]"
        ));
    }
    let review: Review = serde_json::from_slice(body).map_err(wrong)?;
    let uid = review.request.uid;
    if uid.is_empty() || uid.len() > UID_CHARS {
        return Err(format!(
            "request.uid of a review has 1 to {UID_CHARS} characters"
        ));
    }
    let outcome = review.request.object.as_ref().map(pod::outcome);
    let outcome = outcome.unwrap_or_default();
    let mut response = json!({ "uid": uid, "allowed": true });
    if !outcome.patch.is_empty() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(Value::Array(outcome.patch).to_string()));
    }
    if !outcome.warnings.is_empty() {
        response["warnings"] = json!(outcome.warnings);
    }
    Ok(json!({ "apiVersion": VERSION, "kind": "AdmissionReview", "response": response }))
}
