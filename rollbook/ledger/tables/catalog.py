"""Inputs of batches: tasks, task sets, policy scripts, artifacts. All insert-only and content-addressed."""

from sqlalchemy import BigInteger, Column, ForeignKey, Identity, Index, Integer, Table

from rollbook.ledger.tables.base import (
    JSON_DIGEST,
    Json,
    check,
    integer,
    metadata,
    not_blank,
    now,
    row_digest,
    sha256_text,
    text,
)

artifact = Table(
    "artifact",
    metadata,
    text("sha256", "digest of the bytes; their name in the artifact store", primary_key=True),
    Column("size_bytes", BigInteger, nullable=False, comment="size of the bytes"),
    text("media_type", "media type, for instance image/png"),
    now("recorded_at", "when the ledger first referred to it"),
    row_digest(),
    check("artifact_sha256", sha256_text("sha256")),
    check("artifact_size", "size_bytes >= 0"),
    check("artifact_media_type", not_blank("media_type")),
    comment="bytes in the artifact store that the ledger refers to",
)

task = Table(
    "task",
    metadata,
    text("task_digest", "SHA-256 of the canonical JSON of the document", primary_key=True),
    text("task_id", "OSWorld's id of the task"),
    Column("document", Json, nullable=False, comment="the task in OSWorld's format, as canonical JSON"),
    now("recorded_at", "when the document was first registered"),
    check("task_digest_of_document", JSON_DIGEST.format(digest="task_digest", document="document")),
    check("task_id_of_document", "document ->> 'id' = task_id"),
    comment="one version of one task",
)

task_set = Table(
    "task_set",
    metadata,
    Column("registration", Integer, Identity(always=True), primary_key=True, comment="order of registration"),
    text("name", "name of the set; the newest registration under a name wins"),
    text("set_digest", "content address of the set, independent of file order and layout"),
    integer("task_count", "tasks in the set"),
    now("registered_at", "when it was registered under this name"),
    check("task_set_digest", sha256_text("set_digest")),
    check("task_set_count", "task_count > 0"),
    comment="names of registered task sets",
)
Index("task_set_name_idx", task_set.c.name, task_set.c.registration)

task_set_member = Table(
    "task_set_member",
    metadata,
    text("set_digest", "the set", primary_key=True),
    text("task_id", "the task; once per set", primary_key=True),
    text("domain", "the task's folder, for instance os or multi_apps"),
    Column(
        "task_digest",
        ForeignKey("task.task_digest"),
        nullable=False,
        comment="the version of the task that the set holds",
    ),
    comment="which tasks a set holds",
)

policy_script = Table(
    "policy_script",
    metadata,
    text("script_digest", "SHA-256 of the canonical JSON of the body", primary_key=True),
    Column("body", Json, nullable=False, comment="steps per task, as canonical JSON"),
    now("recorded_at", "when the body was first registered"),
    check("policy_script_digest_of_body", JSON_DIGEST.format(digest="script_digest", document="body")),
    comment="recorded steps that a scripted policy plays",
)

policy_script_name = Table(
    "policy_script_name",
    metadata,
    Column("registration", Integer, Identity(always=True), primary_key=True, comment="order of registration"),
    text("name", "name of the script; the newest registration under a name wins"),
    Column("script_digest", ForeignKey("policy_script.script_digest"), nullable=False, comment="what the name means"),
    now("registered_at", "when it was registered under this name"),
    comment="names of registered scripts",
)
Index("policy_script_name_name_idx", policy_script_name.c.name, policy_script_name.c.registration)
