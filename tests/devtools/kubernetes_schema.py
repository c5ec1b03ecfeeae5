"""What Kubernetes and KubeRay take of the fields that deploy/kuberay uses: types, required ones, and no other names.

Reduced by hand from ray-operator/apis/ray/v1 (RayCluster) and from core/v1 and apps/v1.  A field that is not here is
refused, so that a slip of the pen is found; who wants another one looks it up and adds it.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
QUANTITY: Schema = {"type": "string", "pattern": r"^\d+(\.\d+)?(m|Ki|Mi|Gi|Ti)?$"}
NAME: Schema = {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
"""Labels, selectors, parameters of ``ray start``: values are strings, numbers among them."""


def table(*required: str, **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def rows(of: Schema) -> Schema:
    return {"type": "array", "items": of, "minItems": 1}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


METADATA = table(name=NAME, labels=TEXTS)
QUANTITIES: Schema = {"type": "object", "additionalProperties": QUANTITY}
PROFILE = table("type", type=one_of("RuntimeDefault", "Unconfined", "Localhost"))
PROBE: Schema = table(
    exec=table("command", command=rows(TEXT)),
    httpGet=table("port", path=TEXT, port=PORT),
    initialDelaySeconds=COUNT,
    periodSeconds=COUNT,
    timeoutSeconds=COUNT,
    failureThreshold=COUNT,
) | {"oneOf": [{"required": ["exec"]}, {"required": ["httpGet"]}]}
CONTAINER = table(
    "name",
    "image",
    name=NAME,
    image=TEXT,
    command=rows(TEXT),
    args=rows(TEXT),
    env=rows(
        table(
            "name",
            name=TEXT,
            value={"type": "string"},
            valueFrom=table("fieldRef", fieldRef=table("fieldPath", fieldPath=one_of("spec.nodeName", "status.podIP"))),
        )
    ),
    envFrom=rows(table("secretRef", secretRef=table("name", name=NAME))),
    ports=rows(table("containerPort", name=NAME | {"maxLength": 15}, containerPort=PORT)),
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    resources=table(requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts=rows(table("name", "mountPath", name=NAME, mountPath=TEXT, readOnly=FLAG)),
    securityContext=table(
        allowPrivilegeEscalation=FLAG,
        readOnlyRootFilesystem=FLAG,
        capabilities=table(drop=rows(TEXT)),
        seccompProfile=PROFILE,
        appArmorProfile=PROFILE,
        procMount=one_of("Default", "Unmasked"),
    ),
)
VOLUME: Schema = table(
    "name",
    name=NAME,
    persistentVolumeClaim=table("claimName", claimName=NAME, readOnly=FLAG),
    secret=table("secretName", secretName=NAME),
    emptyDir=table(medium=one_of("", "Memory"), sizeLimit=QUANTITY),
    hostPath=table("path", path=TEXT, type=one_of("", "Directory", "DirectoryOrCreate")),
)
POD = table(
    "containers",
    automountServiceAccountToken=FLAG,
    hostUsers=FLAG,
    nodeSelector=TEXTS,
    securityContext=table(runAsUser=COUNT, runAsGroup=COUNT, fsGroup=COUNT),
    containers=rows(CONTAINER),
    volumes=rows(VOLUME),
)
TEMPLATE = table("spec", metadata=METADATA, spec=POD)

RAY_CLUSTER = table(
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    apiVersion=one_of("ray.io/v1"),
    kind=one_of("RayCluster"),
    metadata=METADATA,
    spec=table(
        "headGroupSpec",
        rayVersion=TEXT,
        headGroupSpec=table(
            "rayStartParams",
            "template",
            serviceType=one_of("ClusterIP", "NodePort", "LoadBalancer"),
            rayStartParams=TEXTS,
            template=TEMPLATE,
        ),
        workerGroupSpecs=rows(
            table(
                "groupName",
                "minReplicas",
                "maxReplicas",
                "rayStartParams",
                "template",
                groupName=NAME,
                replicas=COUNT,
                minReplicas=COUNT,
                maxReplicas=COUNT,
                numOfHosts={"type": "integer", "minimum": 1},
                rayStartParams=TEXTS,
                template=TEMPLATE,
            )
        ),
    ),
)
DAEMON_SET = table(
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    apiVersion=one_of("apps/v1"),
    kind=one_of("DaemonSet"),
    metadata=METADATA,
    spec=table("selector", "template", selector=table(matchLabels=TEXTS), template=TEMPLATE),
)
DEPLOYMENT = table(
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    apiVersion=one_of("apps/v1"),
    kind=one_of("Deployment"),
    metadata=METADATA,
    spec=table(
        "selector",
        "template",
        replicas=COUNT,
        strategy=table("type", type=one_of("Recreate", "RollingUpdate")),
        selector=table(matchLabels=TEXTS),
        template=TEMPLATE,
    ),
)
SERVICE = table(
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    apiVersion=one_of("v1"),
    kind=one_of("Service"),
    metadata=METADATA,
    spec=table("ports", selector=TEXTS, ports=rows(table("port", name=NAME, port=PORT, targetPort=PORT))),
)
