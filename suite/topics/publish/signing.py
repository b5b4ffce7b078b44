"""Says who ran published records: a statement about their files, signed by the identity of a CI job.

The statement is in-toto's: the SHA-256 of each table, and the collection whose records the signer ran. It lies beside
the tables as a Sigstore bundle, which cosign and the sigstore command check as well. A checksum shows damage alone:
what has no such statement is *unsigned*.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.record.files import read_plain
from suite.record.text import printable

if TYPE_CHECKING:
    from sigstore.models import Bundle, ClientTrustConfig

STATEMENT = "records.sigstore.json"
"""The file of the signed statement, beside the tables of a publication."""
PREDICATE = "urn:leantrain:records:v1"
PAYLOAD = "application/vnd.in-toto+json"


class Signer:
    """Signs with the identity of the CI job that it is made in. ``trust``: another Sigstore's trust configuration.

    Raises ValueError, with what to do, where there is no such identity, no sigstore, or no key of the public one.
    """

    def __init__(self, trust: Path | None = None) -> None:
        _needs_sigstore("--sign")
        from sigstore.errors import Error
        from sigstore.oidc import IdentityError, IdentityToken, detect_credential

        try:
            found = detect_credential()
            self._token = IdentityToken(found) if found else None
        except (IdentityError, Error) as error:
            raise ValueError(
                f"--sign: this CI job has no identity to sign with, {_first_line(error)}; give it the permission "
                "id-token: write, or publish unsigned, without --sign"
            ) from None
        if self._token is None:
            raise ValueError(
                "--sign needs the identity of a CI job, e.g. of GitHub Actions with the permission id-token: write; "
                "without --sign the records are published unsigned"
            )
        self._trust = _trusted(trust)

    def sign(self, files: Mapping[str, bytes], source: str) -> bytes:
        """Signs that who signs ran the records of ``source`` in these files, by their paths; returns the bundle.

        Raises ValueError where Sigstore does not answer, or refuses.
        """
        from sigstore.dsse import DigestSet, StatementBuilder, Subject
        from sigstore.sign import SigningContext

        assert self._token is not None
        subjects = [Subject(name=name, digest=DigestSet({"sha256": _digest(files[name])})) for name in sorted(files)]
        statement = StatementBuilder(subjects, PREDICATE, {"source": source}).build()
        try:
            with SigningContext.from_trust_config(self._trust).signer(self._token) as signer:
                return signer.sign_dsse(statement).to_json().encode()
        except Exception as error:  # whatever an authority, a log or a proxy does
            raise ValueError(
                f"--sign: Sigstore did not sign, {_first_line(error)}; try again, or publish unsigned, without --sign"
            ) from None


@dataclass(frozen=True)
class Signed:
    """Holds what ``identity`` signed of the files of ``folder``: that it ran the records of ``source`` in them.

    ``digests``: the SHA-256 of each file, by its path in the folder.
    """

    folder: Path
    identity: str
    source: str
    digests: Mapping[str, str]

    def require(self, file: Path) -> None:
        """Raises ValueError unless the file's bytes are those that were signed."""
        name = file.relative_to(self.folder).as_posix()
        if name not in self.digests:
            raise ValueError(f"{file}: it is unsigned, {STATEMENT} beside it does not name it; nothing is added")
        if _digest(read_plain(file)) != self.digests[name]:
            raise ValueError(f"{file}: {self.identity} signed other bytes; fetch it again, nothing is added")


def verified(folder: Path, identity: str, trust: Path | None = None) -> Signed:
    """Reads the statement of a publication and verifies it: signature, certificate, log, and that ``identity`` signed.

    Raises ValueError, one sentence, where it is missing, damaged, signed by another or says something else.
    """
    place = folder / STATEMENT
    if not place.is_file():
        raise ValueError(
            f"{folder} is unsigned: it has no {STATEMENT}, as leantrain publish --sign writes into its folder; "
            "nothing is added"
        )
    _needs_sigstore("--require-signed")
    from sigstore.errors import Error, VerificationError
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity

    try:
        bundle = _bundle(read_plain(place))
        signer = identity_of(bundle)
        if signer != identity:
            raise ValueError(f"it is signed by {printable(signer)}, not by {identity}")
        verifier = Verifier(trusted_root=_trusted(trust).trusted_root)
        kind, payload = verifier.verify_dsse(bundle, Identity(identity=identity))
        source, digests = _said(kind, payload)
    except VerificationError as error:
        raise ValueError(f"{place}: it cannot be verified, {_first_line(error)}; nothing is added") from None
    except (Error, ValueError) as error:
        raise ValueError(f"{place}: {_first_line(error)}; nothing is added") from None
    return Signed(folder, identity, source, digests)


def identity_of(bundle: Bundle) -> str:
    """Returns whom the certificate of a bundle names, e.g. the address of a workflow. Verifies nothing."""
    from cryptography.x509 import ExtensionNotFound, RFC822Name, SubjectAlternativeName, UniformResourceIdentifier

    try:
        names = bundle.signing_certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        return "nobody"
    found = [*names.get_values_for_type(UniformResourceIdentifier), *names.get_values_for_type(RFC822Name)]
    return found[0] if len(found) == 1 else "nobody"


def signer_of(statement: bytes) -> str:
    """Returns who signed the statement that :class:`Signer` just made."""
    return identity_of(_bundle(statement))


def _bundle(content: bytes) -> Bundle:
    from sigstore.errors import VerificationError
    from sigstore.models import Bundle, InvalidBundle

    try:
        return Bundle.from_json(content)
    except (InvalidBundle, VerificationError, ValueError):
        raise ValueError("it is damaged, or no Sigstore bundle; fetch it again") from None


def _said(kind: str, payload: bytes) -> tuple[str, dict[str, str]]:
    """Returns the collection and the files' digests of a verified statement. Raises ValueError where it is another."""
    try:
        whole: Any = json.loads(payload) if kind == PAYLOAD else {}
        if whole["predicateType"] != PREDICATE:
            raise ValueError
        digests = {str(each["name"]): str(each["digest"]["sha256"]) for each in whole["subject"]}
        return str(whole["predicate"]["source"]), digests
    except (ValueError, KeyError, TypeError):
        raise ValueError("what is signed is no statement about records") from None


def _trusted(path: Path | None) -> ClientTrustConfig:
    """Returns the keys and servers of the Sigstore that a file describes, or of the public one."""
    from sigstore.errors import Error
    from sigstore.models import ClientTrustConfig

    if path:
        try:
            return ClientTrustConfig.from_json(read_plain(path).decode())
        except (Error, ValueError):
            raise ValueError(f"{path} is no trust configuration of Sigstore; name another file with --trust") from None
    try:
        return ClientTrustConfig.production()
    except Error as error:
        raise ValueError(
            f"the keys of Sigstore cannot be fetched, {_first_line(error)}; do it where there is a network, or name a "
            "trust configuration with --trust"
        ) from None


def _needs_sigstore(option: str) -> None:
    try:
        import sigstore  # noqa: F401
    except ImportError:
        raise ValueError(f"{option} needs sigstore: pip install 'leantrain[sign]'") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return printable(text.splitlines()[0] if text else type(error).__name__)
