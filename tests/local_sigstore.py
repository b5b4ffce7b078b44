"""A whole Sigstore on this machine: a CI job's identity, the authority of certificates, its log, the log of signatures.

Its keys are made anew and its trust configuration names them, so that the real client signs and verifies as it does
with the public one. Each log has one leaf: the newest.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

WORKFLOW = "https://github.com/alice/runs/.github/workflows/run.yml@refs/heads/main"
SCT_LIST = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
MINUTES = dt.timedelta(minutes=10)
SINCE = "2020-01-01T00:00:00Z"


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def der(key: Any) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)  # type: ignore[no-any-return]


def id_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(der(key.public_key())).digest()


def signature(key: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    return key.sign(content, ec.ECDSA(hashes.SHA256()))


class LocalSigstore:
    """Holds the keys, and answers as the servers do. ``workflow`` is whom its certificates name."""

    def __init__(self, workflow: str = WORKFLOW) -> None:
        self.workflow = workflow
        self.authority, self.certificates, self.signatures = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        self.now = dt.datetime.now(dt.UTC).replace(microsecond=0)
        self.address = ""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local sigstore")])
        self.root = (
            x509.CertificateBuilder(name, name, self.authority.public_key(), 1)
            .not_valid_before(self.now - MINUTES)
            .not_valid_after(self.now + MINUTES)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(*[each in (5, 6) for each in range(9)]), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key()), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    def trust(self) -> str:
        """Returns the trust configuration that names these keys and servers."""
        service = {"url": self.address, "majorApiVersion": 1, "validFor": {"start": SINCE}, "operator": "local"}
        chain = {"certificates": [{"rawBytes": b64(self.root.public_bytes(serialization.Encoding.DER))}]}
        authority = {"uri": self.address, "certChain": chain, "validFor": {"start": SINCE}}
        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self._log(self.signatures)],
            "ctlogs": [self._log(self.certificates)],
            "certificateAuthorities": [authority | {"subject": {"organization": "local", "commonName": "local"}}],
        }
        config = {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [service],
            "rekorTlogUrls": [service],
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaConfig": {"selector": "ANY"},
        }
        kind = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"
        return json.dumps({"mediaType": kind, "trustedRoot": root, "signingConfig": config})

    def _log(self, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
        own = {"rawBytes": b64(der(key.public_key())), "keyDetails": "PKIX_ECDSA_P256_SHA_256"}
        return {
            "baseUrl": self.address,
            "hashAlgorithm": "SHA2_256",
            "publicKey": own | {"validFor": {"start": SINCE}},
            "logId": {"keyId": b64(id_of(key))},
        }

    def token(self) -> str:
        """Returns what GitHub gives a job: who it is, until when (JWT)."""
        until = int(self.now.timestamp()) + 600
        issuer, whom = "https://token.actions.githubusercontent.com", "repo:alice/runs:ref:refs/heads/main"
        claims = {"iss": issuer, "sub": whom, "aud": "sigstore", "iat": until - 600, "exp": until}
        parts = [json.dumps(each).encode() for each in ({"alg": "none", "typ": "JWT"}, claims)] + [b"none"]
        return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)

    def certificate(self, request: x509.CertificateSigningRequest) -> list[str]:
        """Returns the certificate of a job's key, which the log of certificates has seen, and the authority's."""
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(self.workflow)])
        builder = (
            x509.CertificateBuilder(self.root.subject, x509.Name([]), request.public_key(), 2)  # type: ignore[arg-type]
            .not_valid_before(self.now - MINUTES)
            .not_valid_after(self.now + MINUTES)
            .add_extension(x509.KeyUsage(*[each == 0 for each in range(9)]), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), critical=False
            )
            .add_extension(names, critical=True)
        )
        before = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        at_ms = int(self.now.timestamp()) * 1000
        seen = struct.pack("!BBQH", 0, 0, at_ms, 1) + id_of(self.authority)
        seen += len(before).to_bytes(3, "big") + before + b"\0\0"
        signed = signature(self.certificates, seen)
        stamp = b"\0" + id_of(self.certificates) + struct.pack("!QHBBH", at_ms, 0, 4, 3, len(signed)) + signed
        listed = struct.pack("!HH", len(stamp) + 2, len(stamp)) + stamp
        octets = b"\x04" + (bytes([len(listed)]) if len(listed) < 128 else bytes([0x81, len(listed)])) + listed
        whole = builder.add_extension(x509.UnrecognizedExtension(SCT_LIST, octets), critical=False)
        chain = [whole.sign(self.authority, hashes.SHA256()), self.root]
        return [each.public_bytes(serialization.Encoding.PEM).decode() for each in chain]

    def entry(self, proposed: dict[str, Any]) -> dict[str, Any]:
        """Returns what the log of signatures keeps of a signed statement, with the proof that it does."""
        content = proposed["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        payload = base64.b64decode(envelope["payload"])
        (one,) = envelope["signatures"]
        kept = {
            "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(content["envelope"].encode()).hexdigest()},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [{"signature": one["sig"], "verifier": content["verifiers"][0]}],
        }
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": kept}, sort_keys=True).encode()
        leaf = hashlib.sha256(b"\0" + body).digest()
        id, at_s = id_of(self.signatures), int(self.now.timestamp())
        note = f"local\n1\n{b64(leaf)}\n"
        proof = {
            "checkpoint": f"{note}\n— local {b64(id[:4] + signature(self.signatures, note.encode()))}\n",
            "hashes": [],
            "logIndex": 0,
            "rootHash": leaf.hex(),
            "treeSize": 1,
        }
        promised = {"body": b64(body), "integratedTime": at_s, "logID": id.hex(), "logIndex": 0}
        promise = signature(self.signatures, json.dumps(promised, separators=(",", ":")).encode())
        return promised | {"verification": {"inclusionProof": proof, "signedEntryTimestamp": b64(promise)}}


class Handler(BaseHTTPRequestHandler):
    """Answers at the addresses of the three servers."""

    def do_GET(self) -> None:
        self._answer({"value": self._sigstore.token()})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/api/v2/signingCert":
            request = x509.load_pem_x509_csr(base64.b64decode(asked["certificateSigningRequest"]))
            certificates = self._sigstore.certificate(request)
            return self._answer({"signedCertificateEmbeddedSct": {"chain": {"certificates": certificates}}})
        return self._answer({"0": self._sigstore.entry(asked)})

    @property
    def _sigstore(self) -> LocalSigstore:
        return self.server.sigstore  # type: ignore[attr-defined, no-any-return]

    def _answer(self, values: object) -> None:
        content = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(sigstore: LocalSigstore) -> Iterator[dict[str, str]]:
    """Serves it; yields the variables that make a process one of its CI jobs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.sigstore = sigstore  # type: ignore[attr-defined]
    sigstore.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {
            "GITHUB_ACTIONS": "true",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "token",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{sigstore.address}/token?",
        }
    finally:
        server.shutdown()
        server.server_close()
