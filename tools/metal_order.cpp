// Makes the CPU compute a graph in the order that ggml-metal would give it (ggml-metal-common.cpp, compiled beside).
#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "ggml-metal-common.h"
#include "ggml-metal-device.h"

#include <vector>

static ggml_backend_t (*real_init)(ggml_backend_dev_t, const char *);
static long n_moved = 0;

static void reorder(ggml_backend_t, ggml_cgraph * graph, ggml_backend_graph_optimize_params *) {
    const std::vector<ggml_tensor *> before(graph->nodes, graph->nodes + graph->n_nodes);
    ggml_graph_optimize(graph);
    for (int i = 0; i < graph->n_nodes; i++) n_moved += graph->nodes[i] != before[i];
}

static ggml_backend_t init(ggml_backend_dev_t device, const char * params) {
    ggml_backend_t backend = real_init(device, params);
    if (backend) backend->iface.graph_optimize = reorder;
    return backend;
}

extern "C" ggml_metal_buffer_id ggml_metal_buffer_get_id(ggml_metal_buffer_t, const ggml_tensor *) { return {}; }

extern "C" long metal_order_moved() { return n_moved; }

__attribute__((constructor)) static void install() {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    real_init = cpu->iface.init_backend;
    cpu->iface.init_backend = init;
}
