//! The certificates: an authority that signs one certificate, and is no more.
//!
//! The authority's key is dropped as soon as it has signed, so nobody can sign with it, whoever reads the Secret. A renewal therefore
//! makes a new authority, and the bundle that API servers trust has this one and the one before: servers that still have the former
//! certificate are believed until they have the new one. When it is time is found by checking the certificate as an API server will
//! check it later; so whatever is wrong with what is stored (another name, a key of another) is a reason to renew.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

/// How much the clocks of two machines may differ.
const SKEW: Duration = Duration::from_secs(600);
/// The end of a certificate in a bundle.
const END: &str = "-----END CERTIFICATE-----\n";

/// What servers need, and what their clients trust; all as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Material {
    /// The authorities: the newest first, and the one before.
    pub(crate) authorities: String,
    /// The server's certificate, by the newest of them.
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Material {
    /// Makes an authority and a certificate for a server of this name, valid from now on; the newest authority of `previous` stays.
    pub(crate) fn make(
        name: &str,
        now: SystemTime,
        lifetime: Duration,
        previous: Option<&Material>,
    ) -> anyhow::Result<Material> {
        let named = |common: String| {
            let mut params = CertificateParams::new(Vec::new())?;
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, common);
            params.not_before = (now - SKEW).into();
            params.not_after = (now + lifetime).into();
            anyhow::Ok(params)
        };
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut authority = named(format!("millrace-admission {seconds}"))?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        // A common name has 64 characters at most, and nobody reads it.
        let mut server = named("millrace-admission".to_owned())?;
        server.subject_alt_names = CertificateParams::new([name.to_owned()])?.subject_alt_names;
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        server.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = server.signed_by(&key, &authority)?;
        let mut authorities = authority.pem();
        if let Some(before) =
            previous.and_then(|material| material.authorities.split_inclusive(END).next())
        {
            authorities.push_str(before);
        }
        Ok(Material {
            authorities,
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// What a server with this name serves it by, if a client that trusts these authorities will believe it at this time.
    pub(crate) fn checked(&self, name: &str, at: SystemTime) -> anyhow::Result<Arc<CertifiedKey>> {
        let provider = Arc::new(default_provider());
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(self.authorities.as_bytes()) {
            roots.add(authority.context("an authority")?)?;
        }
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes());
        let chain: Vec<CertificateDer<'static>> =
            chain.collect::<Result<_, _>>().context("the certificate")?;
        let (first, others) = chain.split_first().context("there is no certificate")?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).context("the key")?;
        let at = at.duration_since(UNIX_EPOCH).context("the time")?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()?
            .verify_server_cert(
                first,
                others,
                &ServerName::try_from(name.to_owned())?,
                &[],
                UnixTime::since_unix_epoch(at),
            )?;
        let key = CertifiedKey::from_der(chain.clone(), key, &provider)
            .map_err(|error| anyhow!("the key is not the certificate's: {error}"))?;
        ensure!(!self.authorities.is_empty(), "there is no authority");
        Ok(Arc::new(key))
    }
}

/// What the server shows to clients just now. Connections that are there stay as they are.
#[derive(Debug, Default)]
pub(crate) struct Shown(RwLock<Option<Arc<CertifiedKey>>>);

impl Shown {
    /// From now on it is this one.
    pub(crate) fn show(&self, key: Arc<CertifiedKey>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }

    /// What is shown; none until there is one.
    pub(crate) fn now(&self) -> Option<Arc<CertifiedKey>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "millrace-admission.millrace.svc";
    const LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

    fn made(now: SystemTime, previous: Option<&Material>) -> Material {
        Material::make(NAME, now, LIFETIME, previous).unwrap()
    }

    /// What clients that trust the authorities of one make of the certificate of another.
    fn believes(client: &Material, server: &Material, at: SystemTime) -> bool {
        let met = Material {
            authorities: client.authorities.clone(),
            ..server.clone()
        };
        met.checked(NAME, at).is_ok()
    }

    #[test]
    fn a_certificate_holds_for_its_name_and_its_time() {
        let now = SystemTime::now();
        let material = made(now, None);
        let second = Duration::from_secs(1);
        for at in [now, now - SKEW + second, now + LIFETIME - second] {
            assert!(material.checked(NAME, at).is_ok());
        }
        for at in [now - SKEW - second * 2, now + LIFETIME + second] {
            assert!(material.checked(NAME, at).is_err());
        }
        for other in ["millrace-admission.default.svc", "localhost", "127.0.0.1"] {
            assert!(material.checked(other, now).is_err(), "{other}");
        }
        // Names may be longer than a common name is.
        let long = format!("{}.{}.svc", "a".repeat(63), "b".repeat(63));
        let material = Material::make(&long, now, LIFETIME, None).unwrap();
        assert!(material.checked(&long, now).is_ok());
    }

    #[test]
    fn what_was_not_made_so_is_not_taken() {
        let now = SystemTime::now();
        let (one, other) = (made(now, None), made(now, None));
        let (good, another) = (one.clone(), other.clone());
        let with = |change: fn(&mut Material, &Material)| {
            let mut changed = good.clone();
            change(&mut changed, &another);
            changed.checked(NAME, now).is_ok()
        };
        assert!(with(|_, _| {}));
        assert!(!with(|material, other| material.key = other.key.clone()));
        assert!(!with(
            |material, other| material.certificate = other.certificate.clone()
        ));
        assert!(!with(
            |material, other| material.authorities = other.authorities.clone()
        ));
        assert!(!with(|material, _| material.authorities.clear()));
        assert!(!with(|material, _| material.certificate.clear()));
        assert!(!with(|material, _| material.key = "-----BEGIN".to_owned()));
        assert!(!with(
            |material, _| material.certificate = material.authorities.clone()
        ));
    }

    #[test]
    fn a_bundle_has_the_authority_before_and_no_more() {
        let now = SystemTime::now();
        let first = made(now, None);
        let second = made(now, Some(&first));
        let third = made(now, Some(&second));
        assert_eq!(second.authorities.matches(END).count(), 2);
        assert_eq!(third.authorities.matches(END).count(), 2);
        assert!(believes(&second, &first, now) && believes(&second, &second, now));
        assert!(believes(&third, &second, now) && believes(&third, &third, now));
        assert!(!believes(&third, &first, now) && !believes(&first, &second, now));
    }
}
