"""Search attributes of the namespace: workflows that set an unregistered one would hang, so workers make sure first."""

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from models.attributes import SEARCH_ATTRIBUTES
from rollbook.errors import ConfigError

_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    "Bool": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
}


async def ensure_search_attributes(client: Client) -> None:
    """Register what the client's namespace lacks; raises ConfigError with the command when that is not allowed."""
    service = client.operator_service
    try:
        listed = await service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in listed.custom_attributes}
        if missing:
            wanted = {name: _TYPES[kind] for name, kind in missing.items()}
            await service.add_search_attributes(
                AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted)
            )
    except RPCError as error:
        command = " ".join(f"--name {name} --type {kind}" for name, kind in SEARCH_ATTRIBUTES.items())
        raise ConfigError(
            f"search attributes of namespace {client.namespace!r} cannot be checked or registered ({error.message}); "
            f"an operator can: temporal operator search-attribute create --namespace {client.namespace} {command}"
        ) from error
